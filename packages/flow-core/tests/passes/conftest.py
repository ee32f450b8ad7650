"""Passes on graphs in text form; `mutants.py` replaces one pass by the identity."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

import pytest

from flow_core.ir.graph import Graph
from flow_core.ir.text import parse_graph, print_graph
from flow_core.passes.base import Pass, PassContext
from flow_core.plugins.host import default_registry
from flow_core.plugins.registry import Registry

MUTANT = "FLOW_TEST_MUTANT"
"""Environment variable with the ``module:Class`` of the pass disabled in this run; empty to disable none."""


def _identity(self: Pass, graph: Graph, context: PassContext) -> Graph:
    return graph


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select the tests that a mutant can fail; without any, pytest ends with a status of its own."""
    if MUTANT in os.environ:
        items[:] = [item for item in items if "apply" in getattr(item, "fixturenames", ())]


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Apply a pass to a graph in text form and return the resulting graph as text.

    Without a registry in ``kernels``, every op is assumed to have a kernel.
    """
    module, _, name = os.environ.get(MUTANT, "").partition(":")
    if module:
        monkeypatch.setattr(getattr(import_module(module), name), "apply", _identity)

    def applied(item: Pass, text: str, kernels: Registry | None = None) -> str:
        context = PassContext(default_registry().ops, kernels=kernels)
        made = item.apply(parse_graph(text), context)
        return f"\n{print_graph(parse_graph(print_graph(made)))}"

    return applied
