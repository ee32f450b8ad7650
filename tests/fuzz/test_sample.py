"""A fixed sample of the cases of `nox -s fuzz`."""

from __future__ import annotations

import sys

import pytest
from fuzzing import caches, columns, foreign, models, pictures, plans, records, states, tables, wire
from fuzzing.__main__ import rows as table_of
from fuzzing.__main__ import show, split
from fuzzing.harness import Run
from fuzzing.targets import READERS, TARGETS, WITHOUT_TARGET
from fuzzing.worker import Limits

from flow_core.plugins.host import default_registry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits come from Linux")

GROUPS = {
    "data": (records, columns, pictures, tables),
    "plans and wire": (plans, caches, wire),
    "checkpoints": (states, foreign, models),
}
CASES = {"data": 700, "plans and wire": 400, "checkpoints": 400}
SEED = 20261128


@pytest.mark.parametrize("group", GROUPS)
def test_mutated_inputs_are_read_or_refused(group: str) -> None:
    names = [target.name for module in GROUPS[group] for target in module.TARGETS]
    counts = split(names, CASES[group])
    run = Run(counts, SEED, limits=Limits(seconds=10))  # the machine may be slow
    run.run()
    show(table_of(run.scores))
    failures = [failure for score in run.scores.values() for failure in score.failures]
    assert not failures, "\n".join(f"{f.what}: {f.command}" for f in failures[:10])
    assert sum(score.cases for score in run.scores.values()) == sum(counts.values())


def test_every_registered_reader_has_a_target() -> None:
    registry = default_registry()
    known = {*registry.formats, *registry.readers, *registry.decoders}
    assert known == READERS.keys() | WITHOUT_TARGET.keys()
    assert READERS.keys().isdisjoint(WITHOUT_TARGET)
    named = {name for names in READERS.values() for name in names}
    assert named <= TARGETS.keys(), named - TARGETS.keys()
