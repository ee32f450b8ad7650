"""Trains networks in parallel forms; started as one process, or as several that MPI joins.

Prints a line per form with the bits of the losses and weights: the same for any number of
processes.  Each form is held against one device, and its bytes against the plan's prediction.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from parallel_networks import NETWORKS, STEPS, Form, assert_near, train, train_here, train_job

import oneflow as flow
from flow_core.comm.exchange import DevicePair, exchanges, links_of
from flow_core.frontend.session.session import default_session
from flow_core.sharding.topology import Device


class Patient(Form):
    """A form whose search for signatures does not run out of time on a busy machine."""

    def config(self) -> Any:
        config = super().config()
        if not self.hierarchy:  # the search over two dimensions takes all the time there is
            config.sbp_selector_seconds(60.0)
        return config


FORMS = {
    "data": Patient(4),
    "model": Patient(4, weights=0),
    "columns": Patient(3, weights=1),
    "hybrid": Patient(4, weights=0, hybrid=True),
    "pipeline": Patient(4, stages=4, micro=3),
    "pipeline-data": Patient(4, stages=2),
    "grid": Patient(4, weights=1, hierarchy=(2, 2)),
    "zero": Patient(4, optimizer="distributed_split"),
    "zero-again": Patient(4, optimizer="distributed_split", ahead=1),
    "zero-owners": Patient(3, optimizer="non_distributed"),
    "zero-pipeline": Patient(4, stages=2, optimizer="distributed_split", micro=2),
    "zero-again-pipeline": Patient(4, stages=2, optimizer="distributed_split", ahead=1, micro=2),
    "mirrored": Patient(4, mirrored=True),
}


def arrays(found: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    return {"the losses": found[0], **found[1]}


@cache
def on_one_device(network: str, form: Form) -> Mapping[str, Any]:
    """Losses and weights of a form for one device, which many other forms have in common."""
    return arrays(train(NETWORKS[network], form))


def check_bytes(network: str, form: str, job: Any) -> None:
    """This process has sent, link by link, what its plan predicts, which is a part of the whole."""
    wanted: Counter[DevicePair] = Counter()
    world, plan = default_session().world, job.plan()
    for once in (False, True):
        for link, nbytes in links_of(exchanges(plan, once)).items():
            if world is None or world.owner(link[0]) == world.rank:
                wanted[link] += nbytes * (1 if once else STEPS)
    sent = job.executable().sent()
    assert sent == +wanted, (network, form, sent, wanted)
    is_part = world is not None and not FORMS[form].mirrored
    assert bool(plan.classes) == is_part, (network, form, plan.classes)
    if is_part and form == "data":
        kept = {arena.device for arena in plan.arenas}
        own = {device for device in kept if world.owner(device) == world.rank}
        assert kept == own | {Device.parse(text) for text in plan.classes}, (kept, plan.classes)
        assert len(kept) < FORMS[form].devices


def main(wanted: list[str]) -> None:
    """Train each ``network:form``, or all forms of a ``network``."""
    for network, form in (pair for name in wanted for pair in pairs(name)):
        one = on_one_device(network, FORMS[form].alone())
        flow.clear_default_session()
        job = train_job(NETWORKS[network], FORMS[form])
        many = arrays(train_here(NETWORKS[network], FORMS[form], job))
        check_bytes(network, form, job)
        assert many.keys() == one.keys()
        for name, value in one.items():
            assert_near(many[name], value, f"{network} {form}: {name}")
        bits = hashlib.sha256(b"".join(many[name].tobytes() for name in sorted(many)))
        print(network, form, bits.hexdigest()[:16])


def pairs(name: str) -> list[tuple[str, str]]:
    network, _, form = name.partition(":")
    return [(network, found) for found in ([form] if form else FORMS)]


if __name__ == "__main__":
    main(sys.argv[1:])
