"""Signal handling for all tests, and what each test starts and ends with."""

from __future__ import annotations

import copy
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The time of an example depends on the load of the machine.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Shells make background jobs ignore Ctrl-C, and programs started by tests inherit that; a Python
# handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On Linux, importing onnxruntime else writes an identifier into the temporary folder, and reports.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Tests that are about plans kept on disk turn them on; others replace parts of compilation.
os.environ.setdefault("FLOW_PLAN_CACHE", "0")

# These modules import PyTorch, which the extra flow-rules[torch] installs.
if find_spec("torch") is None:
    collect_ignore_glob = ["packages/flow-rules/src/flow_rules/dtensor/*.py"]

pytest_plugins = ["suite.leftovers", "suite.parts", "suite.representative"]


@pytest.fixture(autouse=True)
def _one_machine() -> Iterator[None]:
    """Restore the machines of the program, which outlive the default session; end its threads."""
    yield
    sessions = sys.modules.get("flow_core.frontend.session.session")
    for session in sessions._default if sessions else ():
        session.pipeline.close()
        resources = session.resources
        resources.machine_num = 1
        resources.others = {k: v for k, v in resources.others.items() if not k.startswith("env.")}


@pytest.fixture
def own_temporary_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make temporary files that are kept until exit in a folder that pytest removes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def restored_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what commands replace that run a script in their own process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("FLOW_TOPOLOGY", "ONEFLOW_EMULATE_GPUS"):  # of options
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
        if not os.environ[variable]:
            del os.environ[variable]


@pytest.fixture(scope="session")
def interpreter() -> Iterator[str]:
    """Return the address of an interpreter that has imported the packages: see `preloaded`."""
    from suite import leftovers, preloaded

    with (started := preloaded.Interpreter()) as address:
        leftovers.LASTING_PROCESSES.add(str(started.pid))
        yield address


@pytest.fixture
def forked_programs(interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `launching` run programs, such as ranks, as forks of an interpreter."""
    monkeypatch.setattr("launching.interpreter", interpreter)


@pytest.fixture(scope="session")
def fsspec_loop() -> object:
    """Start the thread in which fsspec runs requests, and which lasts as long as the process."""
    return pytest.importorskip("fsspec.asyn").get_loop()


@pytest.fixture(autouse=True)
def _modules_of_examples(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]
) -> Iterator[None]:
    """Let examples of docstrings use these names, each example in a new session."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    import numpy as np

    import oneflow as flow
    import oneflow.typing as tp
    from flow_core.api.examples import rates, run, weights
    from flow_core.frontend.session.session import default_session

    doctest_namespace.update(flow=flow, np=np, rates=rates, run=run, tp=tp, weights=weights)
    flow.clear_default_session()
    resources = copy.deepcopy(default_session().resources)
    yield
    flow.clear_default_session()
    default_session().resources = resources
