"""What a job's comm has sent is what its plan predicts, link by link; plans survive JSON."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from collections import Counter
import numpy as np
import oneflow as flow
import oneflow.typing as tp
from flow_core.plan import Plan
from flow_core.comm.exchange import links_of, exchanges

form = sys.argv[1]
INIT = flow.random_normal_initializer(stddev=0.3)
HINT = {
    "rows": {"model_distribute": flow.distribute.split(0)},
}.get(form, {})


@flow.global_function(type="train")
def job(
    x: tp.Numpy.Placeholder((18, 12)), y: tp.Numpy.Placeholder((18,), dtype=flow.int32)
) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0" if form == "pipeline" else "0:0-3"):
        h = flow.layers.dense(x, 15, kernel_initializer=INIT, name="h", **HINT)
        h = flow.nn.relu(h)
    with flow.scope.placement("gpu", {"pipeline": "0:1-3", "hybrid": "0:2-3"}.get(form, "0:0-3")):
        out = flow.layers.dense(h, 5, kernel_initializer=INIT, name="o")
        if form == "host":
            out = flow.identity(out)
    with flow.scope.placement("cpu" if form == "host" else "gpu", "0:0"):
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, out)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
    return loss


executable, compiled = job.executable(), job.compile()
plan = compiled.plan
assert Plan.from_json(plan.to_json()) == plan
rng = np.random.RandomState(0)
for step in range(1, 4):
    job(rng.rand(18, 12).astype("f4"), rng.randint(0, 5, 18).astype("i4"))
    from_plan, from_ledger = Counter(), Counter()
    for once in (False, True):
        for link, nbytes in links_of(exchanges(plan, once)).items():
            from_plan[link] += nbytes * (1 if once else step)
    for e in compiled.physical.ledger:
        assert e.nbytes == sum(n for _, _, n in e.links), e
        for here, there, nbytes in e.links:
            from_ledger[here, there] += nbytes * (1 if e.once else step)
    assert executable.sent() == +from_plan == +from_ledger, (executable.sent(), from_ledger)
assert compiled.physical.ledger
assert plan.bytes_per_step == sum(links_of(exchanges(plan)).values())
for e in compiled.physical.ledger:
    assert e.why and (not e.op or "requires" in e.why), e
    assert e.runners_up or e.hop != "all_reduce", e
print(sorted({e.hop for e in compiled.physical.ledger}))
"""


@pytest.mark.parametrize("form", ["data", "rows", "pipeline", "hybrid", "host"])
def test_sent_is_what_was_predicted(form: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), form],
        env={"ONEFLOW_EMULATE_GPUS": "4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if form == "data":
        assert "all_reduce" in done.stdout
    if form == "host":
        assert "copy_d2h" in done.stdout
