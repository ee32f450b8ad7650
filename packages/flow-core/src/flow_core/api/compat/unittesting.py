"""Helpers that OneFlow's own tests use: ``flow.unittest``.

Returns: A decorator for a test case or a test.
"""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from flow_core.api.session.env import ctrl_port, data_port, machine
from flow_core.base.errors import DataError
from flow_core.frontend.session.default import clear_default_session

__all__ = [
    "TestCase", "env", "num_nodes_required", "register_test_cases", "skip_unless_1n1d",
    "skip_unless_1n2d", "skip_unless_1n4d", "skip_unless_2n1d", "skip_unless_2n2d",
    "skip_unless_2n4d",
]  # fmt: skip

T = TypeVar("T")
_NODES = "__oneflow_test_case_num_nodes_required__"
Decorator = Callable[[T], T]


class _Env:
    """Settings of a test run, read from environment variables: ``flow.unittest.env``."""

    @staticmethod
    def eager_execution_enabled() -> bool:
        """Return whether the tests request eager execution."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_EAGER") == "1"

    @staticmethod
    def typing_check_enabled() -> bool:
        """Return whether the tests request annotation checks."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_TYPING_CHECK") == "1"

    @staticmethod
    def node_list() -> list[str]:
        """Return the addresses of the machines of the test run."""
        return os.environ["ONEFLOW_TEST_NODE_LIST"].split(",")

    @staticmethod
    def has_node_list() -> bool:
        """Return whether the test run names machines."""
        return bool(os.environ.get("ONEFLOW_TEST_NODE_LIST"))

    @staticmethod
    def has_world_size() -> bool:
        """Return whether the test run states a number of processes."""
        return bool(os.environ.get("ONEFLOW_TEST_WORLD_SIZE"))

    @staticmethod
    def world_size() -> int:
        """Return the number of processes of the test run."""
        return int(os.environ["ONEFLOW_TEST_WORLD_SIZE"])

    @staticmethod
    def node_size() -> int:
        """Return the number of machines of the test run."""
        return len(_Env.node_list()) if _Env.has_node_list() else 1

    @staticmethod
    def device_num() -> int:
        """Return the number of devices of each machine."""
        return int(os.environ.get("ONEFLOW_TEST_DEVICE_NUM") or 1)


env = _Env()
_PORTS = {"ONEFLOW_TEST_CTRL_PORT": ctrl_port, "ONEFLOW_TEST_DATA_PORT": data_port}


class TestCase(unittest.TestCase):
    """A test case with a fresh session, on the machines of the test run.

    Args:
        methodName: see `unittest.TestCase`.

    >>> class TestSums(flow.unittest.TestCase):
    ...     def test_sum(self):
    ...         self.assertEqual(1 + 1, 2)
    >>> import unittest
    >>> result = unittest.TestResult()
    >>> _ = TestSums("test_sum").run(result)
    >>> result.wasSuccessful()
    True
    """

    __test__ = False

    def setUp(self) -> None:
        """Drop all jobs and variables."""
        if env.has_node_list():
            machine(env.node_list())
            for name, setting in _PORTS.items():
                if os.environ.get(name):
                    setting(int(os.environ[name]))
        clear_default_session()


def num_nodes_required(num_nodes: int) -> Decorator[Any]:
    """Mark a test with the number of machines that it requires.

    Args:
        num_nodes: the number of machines.

    >>> test = flow.unittest.num_nodes_required(2)(lambda: None)
    """

    def mark(function: object) -> Any:
        setattr(function, _NODES, num_nodes)
        return function

    return mark


class _FreshSession:
    """Default mixin of the test cases that `register_test_cases` builds."""

    def setUp(self) -> None:
        """Drop all jobs and variables."""
        clear_default_session()


def register_test_cases(
    scope: dict[str, object],
    directory: str,
    filter_by_num_nodes: Callable[[int], bool],
    base_class: type[unittest.TestCase] = unittest.TestCase,
    test_case_mixin: type = _FreshSession,
) -> None:
    """Build a test case from the ``test*`` functions of each ``test*.py`` file in a folder.

    Args:
        scope: dict, such as ``globals()``, that receives each class under the name of its file.
        directory: the folder.
        filter_by_num_nodes: function that maps the number of machines a test requires to whether
            the test is included.
        base_class: base class of the test cases.
        test_case_mixin: mixin that precedes ``base_class`` among the bases of the test cases.
    """
    for path in sorted(Path(directory).glob("test*.py")):
        functions = vars(_module(path)).items()
        tests = {
            name: value
            for name, value in functions
            if name.startswith("test")
            and callable(value)
            and filter_by_num_nodes(getattr(value, _NODES, 1))
        }
        scope[path.stem] = type(path.stem, (test_case_mixin, base_class), tests)


def _module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise DataError("register_test_cases", found=str(path), allowed="Python source files")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _skipper(nodes: int, devices: int) -> Callable[[], Decorator[Any]]:
    def skip() -> Decorator[Any]:
        if (env.node_size(), env.device_num()) == (nodes, devices):
            return lambda item: item
        return unittest.skip(f"only runs with {nodes} machine(s) of {devices} device(s)")

    skip.__name__ = skip.__qualname__ = name = f"skip_unless_{nodes}n{devices}d"
    skip.__doc__ = (
        f"Skip a test unless the run has {nodes} machine(s) with {devices} device(s) each.\n\n"
        f">>> test = flow.unittest.{name}()(lambda: None)"
    )
    return skip


skip_unless_1n1d, skip_unless_1n2d, skip_unless_1n4d = (_skipper(1, n) for n in (1, 2, 4))
skip_unless_2n1d, skip_unless_2n2d, skip_unless_2n4d = (_skipper(2, n) for n in (1, 2, 4))
