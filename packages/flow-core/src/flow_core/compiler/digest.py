"""Digests of compile requests and of their plans.

A digest is the SHA-256 of a serialization that depends on contents alone: not on identities, on
the order of dicts and sets, on times, or on what a process has compiled before.  The digest of a
request covers all that its plan depends on, software and hardware included, so that it can be the
key under which a plan is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import metadata
from operator import attrgetter
from typing import Any

from flow_core.base.dtypes import DType
from flow_core.base.errors import SourceLine, UnsupportedError
from flow_core.base.garbage import gc_paused
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.pass_list import ListedPass, pass_list
from flow_core.compiler.replicas import may_share
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.compiler.select.ilp import SOLVER
from flow_core.ir.graph import Attrs, Graph, Op, TensorType
from flow_core.plugins.machine import describe_machine, is_described
from flow_core.plugins.registry import Registry
from flow_core.sharding.sbp import Broadcast, Partial, Split
from flow_core.sharding.topology import Placement

Skipped = Mapping[type, Set[str]]
"""The fields of dataclasses that a digest does not contain, by class."""

REQUEST: Skipped = {
    # `kept_plans` compares limits with what a plan needs; the others are described in another way.
    CompileRequest: {"cache", "limits", "registry", "requested"},
    CompileOptions: {"is_resident", "memory_limit"},
}


@gc_paused()
def request_digest(request: CompileRequest) -> str:
    """Return the digest of a request; with equal ones and equal limits, plans are equal.

    Raises:
        UnsupportedError: the request contains a function, such as a selector of the caller's own,
            or a plugin that has neither a version nor a file.
    """
    unknown = [
        str(record.origin) for record in request.registry.plugins if not is_described(record)
    ]
    if unknown:
        raise UnsupportedError(
            f"computing the digest of job {request.job!r}",
            found=f"{unknown[0]}, which has neither a version nor a file",
            allowed="plugins in modules",
        )
    rows = [
        f"request {_text(request, REQUEST)}",
        *_registry_rows(request.registry),
        f"common memory: {may_share(request, request.graph)}",  # depends on the processes
        *(f"pass {_pass_text(row)}" for row in pass_list(request) if row.run is not None),
        f"solver {_solver_version()}",
        *(f"machine {k!r}: {v!r}" for k, v in sorted(describe_machine(request.registry).items())),
    ]
    return _digest(rows)


@cache
def _solver_version() -> str:
    """Return the version of the integer-program solver; empty if it is not installed."""
    try:
        return metadata.version(SOLVER)
    except metadata.PackageNotFoundError:
        return ""


def plan_digest(compiled: Compiled) -> str:
    """Return the digest of what compilation returned for a request, without times."""
    parts = (
        compiled.optimized_logical, compiled.graph, compiled.plan, compiled.inputs,
        compiled.variables, compiled.shared,
    )  # fmt: skip
    return _digest([_text(part, {}) for part in parts])


def digest(value: Any) -> str:
    """Return the digest of literals, dataclasses, and collections of them.

    Raises:
        UnsupportedError: the value contains something else.
    """
    return _digest([_text(value, {})])


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
    """Describe a pass by its name and plugin, and a requested one by its fields.

    The options of other passes follow from settings, which the request contains, and from what
    `describe_machine` returns.  These passes are not loaded, because a kept plan needs none.
    """
    item = row.requested
    options = {f.name: getattr(item, f.name) for f in fields(item)} if is_dataclass(item) else None
    return f"{row.spec.name} of {row.origin}: {_text(options, {})}"


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
        return _graph_text(value)
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
    raise _undigested(value)


def _graph_text(graph: Graph) -> str:
    """Return the text of a graph, whose ops are ordered; its side tables are not.

    Graphs are nearly all of a request, and JSON is written by compiled code.
    """
    ops = list(map(_OP_FIELDS, graph.ops.values()))
    tables = [dict(getattr(graph, f.name)) for f in fields(graph) if f.name in _TABLES]
    others = {f.name: getattr(graph, f.name) for f in fields(graph) if f.name not in _GRAPH}
    return f"Graph({_json(ops)}; {_json(tables)}; {_text(others, {})})"


_OP_FIELDS = attrgetter(*(f.name for f in fields(Op)))
_TABLES = {"types", "lines", "origins", "merged"}
_GRAPH = {"ops", *_TABLES}


_FORMS: Mapping[type, Callable[[Any], object]] = {
    Attrs: lambda attrs: attrs.literals,
    SourceLine: lambda line: [line.file, line.line, line.inner],
    **dict.fromkeys((Placement, TensorType, Split, Broadcast, Partial), str),
}
"""JSON values that identify a part of a graph among those of its class."""


def _json(value: object) -> str:
    """Return JSON text; equal parts of a graph are mostly the same object, and converted once."""
    known: dict[int, object] = {}

    def plain(part: object) -> object:
        form = known.get(id(part))
        if form is None:
            if type(part) not in _FORMS:
                raise _undigested(part)
            form = known[id(part)] = _FORMS[type(part)](part)
        return form

    return json.dumps(value, default=plain, sort_keys=True, check_circular=False)


def _undigested(value: object) -> UnsupportedError:
    return UnsupportedError(
        "computing the digest of a compiled job",
        found=f"{value!r:.60} (a {type(value).__name__})",
        allowed="literals, dataclasses, and collections of them",
    )
