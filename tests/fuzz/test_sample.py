"""A fixed sample of the cases of `nox -s fuzz`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fuzzing.__main__ import rows as table_of
from fuzzing.__main__ import show, split
from fuzzing.harness import Run
from fuzzing.targets import FUNCTIONS, GROUPS, READERS, TARGETS, WITHOUT_TARGET
from fuzzing.worker import Limits

import flow_fit
import flow_rules
import flow_zoo
import oneflow as flow
from flow_core.plugins.host import default_registry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits come from Linux")

CASES = {"data": 700, "plans and wire": 400, "checkpoints": 400, "networks": 300}
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
    assert {*registry.formats, *registry.readers, *registry.decoders} == READERS.keys()
    assert {name for names in READERS.values() for name in names} <= TARGETS.keys()


PATH = re.compile(r"(^|_)(paths?|files?|folder|dir|directory|source|filename|basename)$")


def takes_path(function: Any) -> bool:
    """Whether a parameter's name or annotation is that of a path."""
    parameters = inspect.signature(function).parameters.values()
    return any(PATH.search(p.name) or "PathLike" in str(p.annotation) for p in parameters)


def functions_of_paths() -> Iterator[str]:
    """The public functions and methods that take a path, without the name of their package."""
    root = Path(flow.__file__).parent
    files = [file for file in root.rglob("*.py") if "single_client" not in file.parts]
    files = [file for file in files if file.stem == "__init__" or file.stem[0] != "_"]
    names = {".".join(file.relative_to(root.parent).with_suffix("").parts) for file in files}
    modules = [import_module(name.removesuffix(".__init__")) for name in names]
    for module in (*modules, flow_fit, flow_rules, flow_zoo):
        prefix = f"{module.__name__}.".partition(".")[2]
        for name in dir(module):  # some are imported when they are used
            value = getattr(module, name)
            own = str(getattr(value, "__module__", "")).startswith(("flow_", "oneflow."))
            if name.startswith("_") or not own:
                continue
            found = {name: value} if inspect.isfunction(value) else {}
            if inspect.isclass(value):
                methods = inspect.getmembers(value, inspect.isfunction)
                found = {f"{name}.{k}": f for k, f in methods if not k.startswith("_")}
                if not issubclass(value, BaseException):  # of which some have no signature
                    found[name] = value
            yield from (prefix + key for key, function in found.items() if takes_path(function))


def test_every_public_function_that_takes_a_path_has_a_target() -> None:
    assert set(functions_of_paths()) == FUNCTIONS.keys() | WITHOUT_TARGET.keys()
    assert FUNCTIONS.keys().isdisjoint(WITHOUT_TARGET)
    assert {name for names in FUNCTIONS.values() for name in names} <= TARGETS.keys()
