"""SBP signatures of bodies, which follow from those of their ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from flow_core.base.errors import InferenceError
from flow_core.ir.graph import AttrValue, Graph, TensorType, Value
from flow_core.ops.control.bodies import Body, body_graph, op_specs, with_attrs
from flow_core.plugins.specs import LocalContext, Part, SbpContext, local_attrs
from flow_core.sharding.sbp import B, P, Region, S, Sbp, Split

Sbps = tuple[Sbp, ...]


@lru_cache(maxsize=1024)
def settled(
    body: Body,
    types: tuple[TensorType, ...],
    given: Sbps,  # their SBPs
    carries: int = 0,  # number of inputs, the first ones, whose SBPs the first results must have
    parts: int | None = None,  # the number of devices; None for any number
) -> tuple[Sbps, Sbps] | None:
    """Return the SBPs of the inputs and results of a body that runs without transfers.

    An input that is given as B gets the SBP that an op which reads it needs, and a carry the one
    that the body returns.

    Returns:
        The SBPs; None if an op has no signature.
    """
    graph, inputs = body_graph(body, types), list(given)
    for _ in range(len(given) + 1):
        found = _passed(graph, inputs, parts)
        if not isinstance(found, tuple):
            repair = found
        else:
            results = tuple(found[0][value] for value in graph.results)
            pairs = zip(inputs, results[:carries], strict=False)
            repair = {i: y for i, (x, y) in enumerate(pairs) if x != y}
            if not repair:
                return tuple(inputs), results
            if not all(s == P or isinstance(s, Split) for s in repair.values()):
                return None
        if repair is None or any(inputs[i] != B for i in repair):
            return None
        for i, sbp in repair.items():
            inputs[i] = sbp
    return None


def _passed(
    graph: Graph, inputs: Sequence[Sbp], parts: int | None
) -> tuple[dict[Value, Sbp]] | dict[int, Sbp] | None:
    """Return the SBPs of all values; or other SBPs that inputs need; or None."""
    specs = op_specs()
    known: dict[Value, Sbp] = {}
    number: dict[Value, int] = {}
    for op in graph.ops.values():
        if op.type == "input":
            number[op.output()] = len(number)
            known[op.output()] = inputs[number[op.output()]]
            continue
        own, outputs = tuple(known[v] for v in op.inputs), graph.types[op.name]
        if all(sbp == B for sbp in own):
            known |= {op.output(i): B for i in range(len(outputs))}
            continue
        rules = specs[op.type].sbp(SbpContext(graph.input_types(op), outputs, op.attrs, parts))
        fitting = [rule for rule in rules if rule.inputs == own]
        if not fitting:
            rows = ([*zip(op.inputs, own, rule.inputs, strict=True)] for rule in rules)
            return next((r for row in rows if (r := _repair(row, number)) is not None), None)
        known |= {op.output(i): sbp for i, sbp in enumerate(fitting[0].outputs)}
    return (known,)


def _repair(
    row: Sequence[tuple[Value, Sbp, Sbp]], number: Mapping[Value, int]
) -> dict[int, Sbp] | None:
    """Return the inputs of the body whose change from B makes a rule fit; None if none does."""
    found: dict[int, Sbp] = {}
    for value, own, wanted in row:
        if own != wanted:
            if own != B or value not in number or not isinstance(wanted, Split):
                return None
            found[number[value]] = wanted
    return found


def splits(types: Sequence[TensorType], *groups: Sequence[int]) -> Iterator[Sbps]:
    """Yield SBPs of the inputs of a body that split one axis of equal size in a group of inputs."""
    rank = max((len(t.shape) for t in types), default=0)
    for group in groups:
        for axis in range(rank):
            sizes = {types[i].shape[axis] for i in group if len(types[i].shape) > axis}
            for size in sorted(sizes - {0, 1}):
                yield tuple(
                    S(axis) if i in group and t.shape[axis : axis + 1] == (size,) else B
                    for i, t in enumerate(types)
                )


def body_work(body: Body, types: tuple[TensorType, ...]) -> float:
    """Return the floating-point operations of a body."""
    graph, total, specs = body_graph(body, types), 0.0, op_specs()
    for op in graph.ops.values():
        work = specs[op.type].work
        if work is not None:
            total += work(SbpContext(graph.input_types(op), graph.types[op.name], op.attrs))
    return total


def local_body(body: Body, inputs: Sequence[Part], carries: int = 0) -> Body:
    """Return the body that computes on parts of its inputs.

    Inputs may be split on several axes, by several dimensions of a hierarchy: the body is adapted
    to the split of one axis after the other.
    """
    types = tuple(part.type for part in inputs)
    axes = sorted({i for part in inputs for i in range(len(part.region)) if not part.is_whole(i)})
    for axis in axes:
        given = tuple(S(axis) if _cuts(part, axis) else B for part in inputs)
        low, high, size = next(
            (*part.region[axis], part.type.shape[axis]) for part in inputs if _cuts(part, axis)
        )
        body = _local(body, types, given, carries, (low, high, size))
        types = tuple(_cut_type(t, p, axis) for t, p in zip(types, inputs, strict=True))
    return body


def _cut_type(type_: TensorType, part: Part, axis: int) -> TensorType:
    if not _cuts(part, axis):
        return type_
    low, high = part.region[axis]
    return TensorType((*type_.shape[:axis], high - low, *type_.shape[axis + 1 :]), type_.dtype)


def _cuts(part: Part, axis: int) -> bool:
    return axis < len(part.region) and not part.is_whole(axis)


def _local(
    body: Body, types: tuple[TensorType, ...], given: Sbps, carries: int, cut: tuple[int, int, int]
) -> Body:
    """Return the body that computes one part of a split axis, ``(start, stop, size)``."""
    try:
        found = settled(body, types, given, carries)
    except InferenceError:  # parts that do not fit together, which no signature allows
        found = None
    if found is None:
        return body
    graph, specs = body_graph(body, types), op_specs()
    passed = _passed(graph, found[0], None)
    known = passed[0] if isinstance(passed, tuple) else {}

    def part(value: Value) -> Part:
        type_, sbp = graph.type_of(value), known.get(value, B)
        return Part(type_, _region(type_.shape, sbp, cut))

    changed: dict[int, Mapping[str, AttrValue]] = {}
    rows = [op for op in graph.ops.values() if op.type != "input"]
    for number, op in enumerate(rows):
        outputs = tuple(part(op.output(i)) for i in range(len(graph.types[op.name])))
        context = LocalContext(op.attrs, tuple(map(part, op.inputs)), outputs)
        attrs = local_attrs(specs[op.type], context)
        if attrs != op.attrs:
            changed[number] = attrs
    return with_attrs(body, changed) if changed else body


def _region(shape: tuple[int, ...], sbp: Sbp, cut: tuple[int, int, int]) -> Region:
    """Return the region of a value; axes that an op merges or splits scale with the split axis."""
    whole = tuple((0, n) for n in shape)
    if not isinstance(sbp, Split):
        return whole
    low, high, size = cut
    n = shape[sbp.axis]
    own = (low * n // size, high * n // size)
    return (*whole[: sbp.axis], own, *whole[sbp.axis + 1 :])
