"""Reverse-mode differentiation: build the backward graph from the gradient rules of ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flow_core.base.errors import GraphError, located
from flow_core.ir.graph import Op, TensorType, Value
from flow_core.ops.build import Emitter, GradContext, Maker, Sym


def backward(
    emitter: Emitter, seeds: Mapping[Value, Value], wanted: Iterable[Value]
) -> dict[Value, Value]:
    """Add the backward ops to the emitter's graph.

    Args:
        emitter: the graph that holds the forward ops.
        seeds: the initial gradient of each value to differentiate (the losses).
        wanted: values whose gradients are needed (the variables).

    Returns:
        The gradient of each wanted value that the seeds depend on.
    """
    builder = emitter.builder
    forward = list(builder.ops.values())
    wanted = list(wanted)
    needed = _downstream(forward, builder.types, wanted)
    parts: dict[Value, list[Value]] = {value: [grad] for value, grad in seeds.items()}
    # In reverse order, all readers of a value come before the op that makes it: when that op is
    # reached, the list of contributions to the gradient of the value is complete.
    for op in reversed(forward):
        if not any(Value(op.name, i) in parts for i in range(len(builder.types[op.name]))):
            continue
        if any(v in needed for v in op.inputs):
            _backward_op(emitter, op, needed, parts)
    return {v: _total(emitter, builder.ops[v.op], v, parts) for v in wanted if v in parts}


def _downstream(
    forward: Sequence[Op], types: Mapping[str, tuple[TensorType, ...]], wanted: Iterable[Value]
) -> set[Value]:
    """Return the wanted values and all values that depend on them."""
    needed = set(wanted)
    names = {v.op for v in needed}
    for op in forward:
        if any(v.op in names and v in needed for v in op.inputs):
            needed.update(Value(op.name, i) for i in range(len(types[op.name])))
            names.add(op.name)
    return needed


def _total(emitter: Emitter, op: Op, value: Value, parts: dict[Value, list[Value]]) -> Value:
    """Return the sum of all gradient contributions of a value; it is computed only once."""
    grads = parts[value]
    if len(grads) > 1:
        placement = emitter.specs[op.type].output_placement(op.placement, value.index)
        maker = Maker(emitter, placement, f"{op.name}/grad", emitter.builder.lines.get(op.name))
        parts[value] = [maker.one("add_n", *(Sym(maker, g) for g in grads)).value]
    return parts[value][0]


def _backward_op(
    emitter: Emitter, op: Op, needed: set[Value], parts: dict[Value, list[Value]]
) -> None:
    spec = emitter.specs[op.type]
    line = emitter.builder.lines.get(op.name)
    if spec.gradient is None:
        return
    maker = Maker(emitter, op.placement, f"{op.name}/grad", line)
    outputs = [Value(op.name, i) for i in range(len(emitter.builder.types[op.name]))]
    grads = tuple(
        Sym(maker, _total(emitter, op, v, parts)) if v in parts else None for v in outputs
    )
    context = GradContext(
        op=op,
        inputs=tuple([Sym(maker, v) for v in op.inputs]),
        outputs=tuple([Sym(maker, v) for v in outputs]),
        grads=grads,
        needed=tuple([v in needed for v in op.inputs]),
        maker=maker,
        backward=backward,
    )
    with located(line):
        results = tuple(spec.gradient(context))
    if len(results) != len(op.inputs):
        raise GraphError(
            f"gradient of {op.type} {op.name!r}",
            at=line,
            found=f"{len(results)} gradients",
            allowed=f"one per input, {len(op.inputs)}",
        )
    for value, wanted, grad in zip(op.inputs, context.needed, results, strict=True):
        if wanted and grad is not None:
            _check_type(emitter, op, value, grad)
            parts.setdefault(value, []).append(grad.value)


def _check_type(emitter: Emitter, op: Op, value: Value, grad: Sym) -> None:
    expected = emitter.builder.type_of(value)
    if grad.type != expected:
        raise GraphError(
            f"gradient of {op.type} {op.name!r}",
            at=emitter.builder.lines.get(op.name),
            found=f"{grad.type} for input {value}",
            allowed=str(expected),
        )
