"""What a job's comm has sent is what its plan predicts, link by link; plans survive JSON."""

from collections import Counter
from typing import Any

import pytest
from parallel_forms import batches, dense, emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.comm.exchange import exchanges, links_of
from flow_core.plan import Plan

ROWS = {"model_distribute": flow.distribute.split(0)}
HOPS = {"data": "all_reduce", "host": "copy_d2h"}
"""Exchanges that some forms must have."""


def make_job(form: str) -> Any:
    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((18, 12)), y: tp.Numpy.Placeholder((18,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0" if form == "pipeline" else "0:0-3"):
            h = flow.nn.relu(dense(x, 15, "h", **(ROWS if form == "rows" else {})))
        second = {"pipeline": "0:1-3", "hybrid": "0:2-3"}.get(form, "0:0-3")
        with flow.scope.placement("gpu", second):
            out = dense(h, 5, "o")
            if form == "host":
                out = flow.identity(out)
        with flow.scope.placement("cpu" if form == "host" else "gpu", "0:0"):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, out)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return job


@pytest.mark.slow
@pytest.mark.representative(
    r"\[hybrid\]", "data parallel, and two devices after four: the most kinds of exchanges"
)
@pytest.mark.parametrize("form", ["data", "rows", "pipeline", "hybrid", "host"])
def test_sent_is_what_was_predicted(form: str) -> None:
    with emulated(4, without=()):
        job = make_job(form)
        executable, compiled = job.executable(), job.compile()
        plan, ledger = compiled.plan, compiled.physical.ledger
        assert Plan.from_json(plan.to_json()) == plan
        for step, feeds in enumerate(batches(3, 18), 1):
            job(*feeds)
            from_plan, from_ledger = Counter(), Counter()
            for once in (False, True):
                for link, nbytes in links_of(exchanges(plan, once)).items():
                    from_plan[link] += nbytes * (1 if once else step)
            for e in ledger:
                assert e.nbytes == sum(n for _, _, n in e.links), e
                for source, target, nbytes in e.links:
                    from_ledger[source, target] += nbytes * (1 if e.once else step)
            assert executable.sent() == +from_plan == +from_ledger
    assert ledger
    assert plan.bytes_per_step == sum(links_of(exchanges(plan)).values())
    for e in ledger:
        assert e.why, e
        assert not e.op or "requires" in e.why, e
        assert e.runners_up or e.hop != "all_reduce", e
    assert form not in HOPS or HOPS[form] in {e.hop for e in ledger}
