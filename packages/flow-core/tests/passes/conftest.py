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

MUTANT = "FLOW_TEST_MUTANT"
"""Environment variable with the ``module:Class`` of the pass disabled in this run."""


def _identity(self: Pass, graph: Graph, context: PassContext) -> Graph:
    return graph


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pass, str], str]:
    """Apply a pass to a graph in text form and return the resulting graph as text."""
    module, _, name = os.environ.get(MUTANT, "").partition(":")
    if module:
        monkeypatch.setattr(getattr(import_module(module), name), "apply", _identity)

    def applied(item: Pass, text: str) -> str:
        made = item.apply(parse_graph(text), PassContext(default_registry().ops))
        return f"\n{print_graph(parse_graph(print_graph(made)))}"

    return applied
