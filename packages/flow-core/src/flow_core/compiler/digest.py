"""Digests of compile requests and of their plans.

A digest is the SHA-256 of a serialization that depends on contents alone: not on identities, on
the order of dicts and sets, on times, or on what a process has compiled before.  The digest of a
request covers all that its plan depends on, software and hardware included, so that it can be the
key under which a plan is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

from flow_core.base.dtypes import DType
from flow_core.base.errors import UnsupportedError
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.pass_list import ListedPass, pass_list
from flow_core.compiler.replicas import may_share
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.ir.graph import Graph
from flow_core.plugins.machine import describe_machine
from flow_core.plugins.registry import Registry

Skipped = Mapping[type, Set[str]]
"""The fields of dataclasses that a digest does not contain, by class."""

REQUEST: Skipped = {
    # Limits refuse plans and do not change them; the others are described in another way.
    CompileRequest: {"limits", "registry", "requested"},
    CompileOptions: {"is_resident", "memory_limit"},
}


def request_digest(request: CompileRequest) -> str:
    """Return the digest of a request; requests with equal digests have equal plans.

    Raises:
        UnsupportedError: the request contains a function, such as a selector of the caller's own.
    """
    rows = [
        f"request {_text(request, REQUEST)}",
        *_registry_rows(request.registry),
        f"common memory: {may_share(request, request.graph)}",  # depends on the processes
        *(f"pass {_pass_text(row)}" for row in pass_list(request) if row.run is not None),
        *(f"machine {k!r}: {v!r}" for k, v in sorted(describe_machine(request.registry).items())),
    ]
    return _digest(rows)


def plan_digest(compiled: Compiled) -> str:
    """Return the digest of what compilation returned for a request, without times."""
    parts = (
        compiled.optimized_logical, compiled.graph, compiled.plan, compiled.inputs,
        compiled.variables, compiled.shared,
    )  # fmt: skip
    return _digest([_text(part, {}) for part in parts])


def _digest(rows: list[str]) -> str:
    return hashlib.sha256("\n".join(rows).encode(errors="surrogatepass")).hexdigest()


def _registry_rows(registry: Registry) -> Iterator[str]:
    """Yield the records that plans may use, with the versions of their plugins."""
    yield from sorted(
        f"{table} {key!r} of {origin}"
        for (table, key), origin in registry.origins.items()
        if table in ("ops", "kernels", "devices", "comms", "boxing")
    )


def _pass_text(row: ListedPass) -> str:
    """Describe a pass by its name, its plugin, and its fields.

    The fields of a registered pass may hold functions and tables of kernels, which other parts of
    the digest describe.
    """
    item = row.instance()
    values = {f.name: getattr(item, f.name) for f in fields(item)} if is_dataclass(item) else {}
    if item is not row.run:
        values = {name: value for name, value in values.items() if _is_plain(value)}
    return f"{row.spec.name} of {row.origin}: {_text(values, {})}"


def _is_plain(value: object) -> bool:
    try:
        _text(value, {})
    except UnsupportedError:
        return False
    return True


def _text(value: Any, skipped: Skipped) -> str:
    """Return a text that is equal for equal values in all processes.

    Raises:
        UnsupportedError: a value has no such text.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, Graph):
        return _graph_text(value, skipped)
    if isinstance(value, Mapping):
        rows = sorted(f"{_text(k, skipped)}: {_text(v, skipped)}" for k, v in value.items())
        return f"{{{', '.join(rows)}}}"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(_text(item, skipped) for item in value))}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join([_text(item, skipped) for item in value])})"
    if is_dataclass(value) and not isinstance(value, type):
        kind, without = type(value), skipped.get(type(value), set())
        rows = [
            f"{f.name}={_text(getattr(value, f.name), skipped)}"
            for f in fields(value)
            if f.init and f.name not in without
        ]
        return f"{kind.__qualname__}({', '.join(rows)})"
    raise UnsupportedError(
        "computing the digest of a compiled job",
        found=f"{value!r:.60} (a {type(value).__name__})",
        allowed="literals, dataclasses, and collections of them",
    )


def _graph_text(graph: Graph, skipped: Skipped) -> str:
    """Return the text of a graph, whose ops are ordered; its side tables are not."""
    ops = [_text(op, skipped) for op in graph.ops.values()]
    others = {f.name: getattr(graph, f.name) for f in fields(graph) if f.name != "ops"}
    return f"Graph({', '.join(ops)}; {_text(others, skipped)})"
