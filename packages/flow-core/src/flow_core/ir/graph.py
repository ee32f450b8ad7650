"""The logical graph: frozen ops on values, with side tables for all other data.

An `Op` has a unique scoped name; a `Value` is one output of an op, identified by the op's name, so
that equality and hashing never walk the graph.  A `Graph` stores its ops in topological order.
`flow_core.ir.text` prints and parses graphs, and `verify` checks their invariants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from flow_core.base.dtypes import DType
from flow_core.base.errors import GraphError, SourceLine
from flow_core.base.shapes import Shape, num_elements
from flow_core.sharding.sbp import NdSbp
from flow_core.sharding.topology import Placement

AttrValue = Any  # bool | int | float | str | None | tuple[AttrValue, ...]; checked by `verify`


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value.

    >>> from flow_core.base.dtypes import float32
    >>> str(TensorType((2, 3), float32)), TensorType((2, 3), float32).nbytes
    ('float32[2,3]', 24)
    """

    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return num_elements(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return num_elements(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@lru_cache(maxsize=8192)
def tensor_type(shape: Shape, dtype: DType) -> TensorType:
    """Return the interned `TensorType` of a shape and an element type."""
    return TensorType(shape, dtype)


class Value(NamedTuple):
    """Output ``index`` of the op named ``op``.

    >>> str(Value("dense/matmul", 0))
    'dense/matmul:0'
    """

    op: str
    index: int  # type: ignore[assignment]  # the field's usual name; tuple.index is not used

    def __str__(self) -> str:
        return f"{self.op}:{self.index}"


class Attrs(Mapping[str, AttrValue]):
    """Frozen, hashable attributes of an op, ordered by name.

    >>> Attrs({"b": 1, "a": (2, 3)})
    Attrs(a=(2, 3), b=1)
    """

    __slots__ = ("_dict", "_hash")

    def __init__(self, items: Mapping[str, AttrValue] = {}) -> None:
        self._dict = {k: items[k] for k in sorted(items)} if len(items) > 1 else dict(items)
        self._hash: int | None = None

    def __getitem__(self, key: str) -> AttrValue:
        return self._dict[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._dict.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        # repr distinguishes 1, 1.0 and True, which are equal
        return isinstance(other, Attrs) and (
            self is other or (self._dict == other._dict and repr(self) == repr(other))
        )

    def __repr__(self) -> str:
        return f"Attrs({', '.join(f'{k}={v!r}' for k, v in self._dict.items())})"

    @property
    def literals(self) -> Mapping[str, AttrValue]:
        """The attributes as a dict, which callers must not change."""
        return self._dict

    def with_(self, **changes: AttrValue) -> Attrs:
        """Return these attributes with some changed or added."""
        return Attrs({**self._dict, **changes})


NO_ATTRS = Attrs()


@dataclass(frozen=True, slots=True)
class Op:
    """One logical op.

    Attributes:
        name: unique in its graph, scoped with slashes.
        type: name of its `OpSpec`.
        inputs: values it reads.
        attrs: literal attributes.
        placement: the devices it runs on.
        sbp: requested SBP of each output, None where no SBP is requested.
        control: names of ops that must run before it.
    """

    name: str
    type: str
    inputs: tuple[Value, ...]
    attrs: Attrs
    placement: Placement
    sbp: tuple[NdSbp | None, ...] = ()
    control: tuple[str, ...] = ()

    def output(self, index: int = 0) -> Value:
        """Return one of its outputs as a value."""
        return Value(self.name, index)

    def with_inputs(self, inputs: tuple[Value, ...]) -> Op:
        """Return the same op on other inputs."""
        return self if inputs == self.inputs else replace(self, inputs=inputs)

    def with_replaced_inputs(self, replacements: Mapping[Value, Value]) -> Op:
        """Return the same op with some input values replaced."""
        return self.with_inputs(tuple([replacements.get(v, v) for v in self.inputs]))


class Origin(NamedTuple):
    """The logical op that an op is a copy of, and which copy it is.

    >>> str(Origin("dense/matmul", rank=3, micro_batch=1, recomputed=True))
    'dense/matmul/recomputed/micro_1@3'
    """

    logical: str  # name of the logical op
    # Position of the copy's device in the placement of the logical op; None if the op runs on all
    # devices of the placement.
    rank: int | None = None
    # Number of its micro-batch; None for an op that runs once per step.
    micro_batch: int | None = None
    recomputed: bool = False  # whether it recomputes the value of a forward op in the backward pass

    @property
    def unsharded(self) -> Origin:
        """Return the common origin of the op's parts on all devices."""
        return self if self.rank is None else self._replace(rank=None)

    def __str__(self) -> str:
        again = "/recomputed" if self.recomputed else ""
        micro = "" if self.micro_batch is None else f"/micro_{self.micro_batch}"
        rank = "" if self.rank is None else f"@{self.rank}"
        return f"{self.logical}{again}{micro}{rank}"


class MergedOp(NamedTuple):
    """An op that a pass merged into another one."""

    type: str
    name: str  # name of the merged op in the logical graph
    line: SourceLine | None  # the user's line, if known


@dataclass(frozen=True, slots=True)
class Graph:
    """A logical graph.  Treat all mappings as read-only; `GraphBuilder` makes new graphs.

    Attributes:
        ops: by name, each after its inputs and control predecessors.
        types: types of the outputs, by op name.
        results: the values that the job returns.
        effects: names of ops that must run even if no op reads their outputs.
        lines: the user's line of each op, where known.
        origins: origins of copies, by name; an op without an entry is not a copy, see `origin`.
        merged: the ops that were merged into an op, by its name.
    """

    ops: Mapping[str, Op]
    types: Mapping[str, tuple[TensorType, ...]]
    results: tuple[Value, ...] = ()
    effects: tuple[str, ...] = ()
    lines: Mapping[str, SourceLine] = field(default_factory=dict, compare=False)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    merged: Mapping[str, tuple[MergedOp, ...]] = field(default_factory=dict, compare=False)

    def origin(self, name: str) -> Origin:
        """Return the origin of an op, by default the op itself."""
        return self.origins.get(name) or Origin(name)

    def type_of(self, value: Value) -> TensorType:
        """Return the type of a value."""
        return self.types[value.op][value.index]

    def input_types(self, op: Op) -> tuple[TensorType, ...]:
        """Return the types of an op's inputs."""
        types = self.types
        return tuple([types[v.op][v.index] for v in op.inputs])

    def consumers(self) -> dict[Value, list[Op]]:
        """Return the ops that read each value, in graph order."""
        readers: dict[Value, list[Op]] = {}
        for op in self.ops.values():
            for value in op.inputs:
                readers.setdefault(value, []).append(op)
        return readers

    def of_type(self, type_: str) -> list[Op]:
        """Return all ops of a type, in graph order."""
        return [op for op in self.ops.values() if op.type == type_]

    def __len__(self) -> int:
        return len(self.ops)


class GraphBuilder:
    """A graph under construction: names stay unique, the order stays topological.

    Args:
        base: the initial graph.

    Attributes:
        inner: ops that were taken out of the graph, for a graph of their own; their names and types
            stay known.
    """

    def __init__(self, base: Graph | None = None) -> None:
        self.ops: dict[str, Op] = dict(base.ops) if base else {}
        self.types: dict[str, tuple[TensorType, ...]] = dict(base.types) if base else {}
        self.lines: dict[str, SourceLine] = dict(base.lines) if base else {}
        self.origins: dict[str, Origin] = dict(base.origins) if base else {}
        self.merged: dict[str, tuple[MergedOp, ...]] = dict(base.merged) if base else {}
        self.results: tuple[Value, ...] = base.results if base else ()
        self.effects: dict[str, None] = dict.fromkeys(base.effects) if base else {}
        self.inner: dict[str, Op] = {}
        self._next: dict[str, int] = {}

    def unique_name(self, wanted: str) -> str:
        """Return ``wanted``, or the first free one of ``wanted_1``, ``wanted_2`` ..."""
        if wanted not in self.ops and wanted not in self.inner:
            return wanted
        number = self._next.get(wanted, 1)
        while f"{wanted}_{number}" in self.ops or f"{wanted}_{number}" in self.inner:
            number += 1
        self._next[wanted] = number + 1
        return f"{wanted}_{number}"

    def add(
        self,
        op: Op,
        types: tuple[TensorType, ...],
        *,
        line: SourceLine | None = None,
        effect: bool = False,
        origin: Origin | None = None,
    ) -> Op:
        """Append an op whose name must be unused and whose inputs must be in the graph."""
        if op.name in self.ops:
            raise GraphError(
                f"adding op {op.name!r}",
                at=line,
                found=f"an op of that name, made at {self.lines.get(op.name, 'an unknown line')}",
                allowed="unique names within a job",
            )
        self.ops[op.name] = op
        self.types[op.name] = types
        if line is not None:
            self.lines[op.name] = line
        if origin is not None:
            self.origins[op.name] = origin
        if effect:
            self.effects[op.name] = None
        return op

    def take_out(self, name: str) -> None:
        """Take an op out of the graph, which must not read its outputs."""
        self.inner[name] = self.ops.pop(name)

    def is_inner(self, value: Value) -> bool:
        """Return whether a value is an output of an op that was taken out of the graph."""
        return value.op in self.inner and value.op not in self.ops

    def type_of(self, value: Value) -> TensorType:
        """Return the type of a value."""
        return self.types[value.op][value.index]

    def build(self) -> Graph:
        """Return the finished graph."""
        return Graph(
            dict(self.ops),
            {name: self.types[name] for name in self.ops},
            self.results,
            tuple(self.effects),
            dict(self.lines),
            dict(self.origins),
            dict(self.merged),
        )


def rebuild(graph: Graph, ops: Iterable[Op], **changes: Any) -> Graph:
    """Return ``graph`` with other ops; its side tables keep the entries of these ops.

    Args:
        ops: the new ops, in topological order.
    """
    by_name = {op.name: op for op in ops}
    types = changes.pop("types", graph.types)
    lines = changes.pop("lines", graph.lines)
    origins = changes.pop("origins", graph.origins)
    merged = changes.pop("merged", graph.merged)
    return Graph(
        ops=by_name,
        types={name: types[name] for name in by_name},
        results=changes.pop("results", graph.results),
        effects=tuple(n for n in changes.pop("effects", graph.effects) if n in by_name),
        lines={name: lines[name] for name in by_name if name in lines},
        origins={name: origins[name] for name in by_name if name in origins},
        merged={name: ops for name, ops in merged.items() if name in by_name},
    )


def verify(graph: Graph, before: Graph | None = None, specs: Mapping[str, Any] = {}) -> None:
    """Check the invariants of a graph; raise `GraphError` naming the op and the rule.

    Args:
        before: a verified graph from which a pass made this one; only its new ops are checked in
            full, and for the others, that their inputs exist.
        specs: the specs of all ops by type, with which types and attributes of ops must agree;
            empty if they are unknown.
    """
    if graph is before:
        return
    types = graph.types
    made: dict[str, int] = {}  # numbers of outputs of the ops so far, which later ones may read
    old, kinds = (before.ops, before.types) if before is not None else ({}, {})
    for name, op in graph.ops.items():
        if old.get(name) is not op or kinds[name] is not types.get(name):
            _verify_op(graph, name, op, specs)
        for source, index in op.inputs:
            if index >= made.get(source, 0):
                raise _broken(graph, name, _missing(source, index, made), _ORDER)
        for other in op.control:
            if other not in made:
                raise _broken(graph, name, f"control predecessor {other}{_LATE}", _ORDER)
        made[name] = len(types[name])
    for value in graph.results:
        if value.index >= made.get(value.op, 0):
            raise GraphError("verifying the results", found=f"no value {value}")


_ORDER = "inputs are outputs of earlier ops, and control predecessors are earlier ops"
_LATE = " comes later or not at all"


def _missing(source: str, index: int, made: Mapping[str, int]) -> str:
    if source not in made:
        return f"input {source}:{index}{_LATE}"
    return f"input {source}:{index}, but {source} has {made[source]} outputs"


def _verify_op(graph: Graph, name: str, op: Op, specs: Mapping[str, Any]) -> None:
    """Check what does not depend on other ops."""
    for rule, holds in _INVARIANTS:
        if problem := holds(graph, name, op):
            raise _broken(graph, name, problem, rule)
    problem = _disagreement(graph, op, specs) if specs else None
    if problem:
        raise _broken(graph, name, problem, "what the spec of the op's type declares")


def _broken(graph: Graph, name: str, problem: str, rule: str) -> GraphError:
    at = graph.lines.get(name)
    return GraphError(f"verifying op {name!r}", at=at, found=problem, allowed=rule)


def _disagreement(graph: Graph, op: Op, specs: Mapping[str, Any]) -> str | None:
    """Return in what an op does not agree with the spec of its type."""
    spec = specs.get(op.type)
    if spec is None:
        return f"type {op.type!r}, which no plugin registers"
    if unknown := op.attrs.keys() - spec.attrs.keys():
        names = ", ".join(spec.attrs) or "none"
        return f"attributes {', '.join(sorted(unknown))} (those of {op.type}: {names})"
    count, wanted = len(graph.types[op.name]), len(spec.outputs)
    if count != wanted and not any(name.endswith("*") for name in spec.outputs):
        return f"types of {count} outputs instead of {wanted} ({op.type})"
    return None


def _name_rule(_: Graph, name: str, op: Op) -> str | None:
    return None if op.name == name and name else f"op {op.name!r} filed under {name!r}"


def _input_rule(_: Graph, __: str, op: Op) -> str | None:
    if type(op.inputs) is not tuple:
        return f"inputs of type {type(op.inputs).__name__}"
    wrong = [value for value in op.inputs if not isinstance(value, Value)]
    return f"input {wrong[0]!r} of type {type(wrong[0]).__name__}" if wrong else None


def _type_rule(graph: Graph, name: str, _: Op) -> str | None:
    if name not in graph.types:
        return "no types of its outputs"
    wrong = [t for t in graph.types[name] if not isinstance(t, TensorType)]
    return f"output type {wrong[0]!r}" if wrong else None


def _attr_rule(_: Graph, __: str, op: Op) -> str | None:
    if not isinstance(op.attrs, Attrs):
        return f"attributes of type {type(op.attrs).__name__}: {op.attrs!r}"
    bad = [k for k, v in op.attrs.items() if not is_literal(v)]
    return f"attribute {bad[0]}={op.attrs[bad[0]]!r}" if bad else None


_INVARIANTS = (
    ("ops are filed under their own non-empty names", _name_rule),
    ("inputs are a tuple of values: Value(op, index), or op.output()", _input_rule),
    ("every op has output types, which are TensorTypes", _type_rule),
    ("Attrs({...}), or NO_ATTRS, of bool, int, float, str, None or tuples of these", _attr_rule),
)


def is_literal(value: AttrValue) -> bool:
    """Return whether a value may be an attribute."""
    return type(value) in _ATOMS or (isinstance(value, tuple) and all(map(is_literal, value)))


_ATOMS = frozenset((bool, int, float, str, type(None)))
