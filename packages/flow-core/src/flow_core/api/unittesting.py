"""Helpers of OneFlow's own tests: ``flow.unittest``."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any, TypeVar

from flow_core.frontend.session import clear_default_session

__all__ = [
    "TestCase",
    "env",
    "num_nodes_required",
    "skip_unless_1n1d",
    "skip_unless_1n2d",
    "skip_unless_1n4d",
    "skip_unless_2n1d",
    "skip_unless_2n2d",
    "skip_unless_2n4d",
]

T = TypeVar("T")
Decorator = Callable[[T], T]


class _Env:
    """What the environment says about a test run: ``flow.unittest.env``."""

    @staticmethod
    def eager_execution_enabled() -> bool:
        """Whether the tests ask for eager execution."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_EAGER") == "1"

    @staticmethod
    def typing_check_enabled() -> bool:
        """Whether the tests ask for checks of annotations."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_TYPING_CHECK") == "1"

    @staticmethod
    def node_list() -> list[str]:
        """Addresses of the machines of the test run."""
        return os.environ["ONEFLOW_TEST_NODE_LIST"].split(",")

    @staticmethod
    def has_node_list() -> bool:
        """Whether the test run names machines."""
        return bool(os.environ.get("ONEFLOW_TEST_NODE_LIST"))

    @staticmethod
    def node_size() -> int:
        """The number of machines of the test run."""
        return len(_Env.node_list()) if _Env.has_node_list() else 1

    @staticmethod
    def device_num() -> int:
        """The number of devices of each machine."""
        return int(os.environ.get("ONEFLOW_TEST_DEVICE_NUM") or 1)


env = _Env()


class TestCase(unittest.TestCase):
    """A test that starts with a fresh session."""

    __test__ = False

    def setUp(self) -> None:
        """Drops all jobs and variables."""
        clear_default_session()


def num_nodes_required(num_nodes: int) -> Decorator[Any]:
    """Marks a test as one for so many machines."""

    def mark(function: Any) -> Any:
        function.__oneflow_test_case_num_nodes_required__ = num_nodes
        return function

    return mark


def _skip_unless(nodes: int, devices: int) -> Decorator[Any]:
    if (env.node_size(), env.device_num()) == (nodes, devices):
        return lambda item: item
    return unittest.skip(f"only runs with {nodes} machine(s) of {devices} device(s)")


def skip_unless_1n1d() -> Decorator[Any]:
    """Skips a test unless there are one machine and one device."""
    return _skip_unless(1, 1)


def skip_unless_1n2d() -> Decorator[Any]:
    """Skips a test unless there are one machine and two devices."""
    return _skip_unless(1, 2)


def skip_unless_1n4d() -> Decorator[Any]:
    """Skips a test unless there are one machine and four devices."""
    return _skip_unless(1, 4)


def skip_unless_2n1d() -> Decorator[Any]:
    """Skips a test unless there are two machines with one device each."""
    return _skip_unless(2, 1)


def skip_unless_2n2d() -> Decorator[Any]:
    """Skips a test unless there are two machines with two devices each."""
    return _skip_unless(2, 2)


def skip_unless_2n4d() -> Decorator[Any]:
    """Skips a test unless there are two machines with four devices each."""
    return _skip_unless(2, 4)
