"""Samples of ops that PyTorch's samples do not call: from related ops, and from schemas.

An op that writes into given tensors is called like the op that returns new ones.  For other ops,
tensors of a few shapes and ranges, and small numbers, are the arguments without a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from flow_rules.dtensor.samples import REFUSALS, Call

SHAPES = ((5, 6), (6, 6), (2, 3, 6, 6), (2, 3, 4, 4, 4))
RANGES = ((torch.float64, 0.1, 0.9), (torch.float64, 1.1, 3.0), (torch.int64, 1, 4))
"""Element types, with least and greatest numbers, of tensors, in order of preference."""
NUMBER = 2

Known = Mapping[Any, Sequence[Call]]


def derived(op: Any, known: Known, most: int) -> tuple[tuple[Call, ...], str]:
    """Return at most ``most`` calls of an op, and the error of the last call that failed."""
    found: dict[str, Call] = {}
    reason = "no op returns what this one writes"
    for call in _candidates(op, known):
        if found and not any(x.is_floating_point() for x in call.tensors):
            break
        try:
            results = call.run([x.numpy() for x in call.tensors])
        except REFUSALS as error:
            first, *_ = str(error).splitlines() or [""]
            reason = f"{type(error).__name__}: {first[:100]}"
            continue
        if results:
            found.setdefault(str(call), call)
        if len(found) == most:
            break
    return tuple(found.values()), reason


def _candidates(op: Any, known: Known) -> Iterator[Call]:
    other = _returning(op)
    into = any(a.is_out for a in op._schema.arguments)
    if other is not None:
        for call in known.get(other) or derived(other, known, len(SHAPES))[0]:
            with suppress(*REFUSALS):
                yield _writing(op, call, other if into else None)
    if other is not None or into:
        return
    for dtype, low, high in RANGES:
        for shape in SHAPES:
            torch.manual_seed(0)
            call = _from_schema(op, _Maker(shape, dtype, low, high))
            if call.tensors:
                yield call


def _returning(op: Any) -> Any:
    """Return the op with the same arguments that returns new tensors; None if there is none."""
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    into = any(a.is_out for a in schema.arguments)
    if not into and (not name.endswith("_") or name.endswith("__")):
        return None
    packet = getattr(getattr(torch.ops, namespace), name if into else name[:-1], None)
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    overloads = [getattr(packet, each) for each in packet.overloads()] if packet else []
    same = (o for o in overloads if [(a.name, str(a.type)) for a in o._schema.arguments] == wanted)
    return next(same, None)


def _writing(op: Any, call: Call, returning: Any) -> Call:
    """Return the call of an op that writes what another call returns."""
    args, kwargs = call.filled(call.tensors)
    names = [a.name for a in op._schema.arguments if a.is_out]
    if names:
        results = call.run([x.numpy() for x in call.tensors])
        into = (torch.zeros_like(torch.from_numpy(x)) for x in results)
        kwargs = {**kwargs, **dict(zip(names, into, strict=True))}
    leaves, tree = tree_flatten((args, kwargs))
    return Call(op, tuple(leaves), tree, returning)


class _Maker:
    """Makes arguments of one kind."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, low: float, high: float) -> None:
        self.shape, self.dtype, self.low, self.high = shape, dtype, low, high

    def tensor(self, shape: tuple[int, ...]) -> Any:
        """Return a tensor of a shape."""
        if self.dtype.is_floating_point:
            return self.low + (self.high - self.low) * torch.rand(shape, dtype=self.dtype)
        return torch.randint(int(self.low), int(self.high) + 1, shape, dtype=self.dtype)

    def value(self, argument: Any, each: int) -> Any:
        """Return a value of an argument.

        Lists of tensors have ``each`` elements; 0 says that the op has none.  Beside lists, single
        tensors are numbers.
        """
        kind, name = str(argument.real_type), argument.name
        shape = self.shape if not each else (each,) if name == "scalars" else ()
        if kind.startswith("Optional"):
            return None
        if "int]" in kind.lower():
            if name in ("size", "shape", "input_size"):
                return list(self.shape)
            return [self.shape[-1]] * (argument.N or 1)
        simple = {"float": 0.5, "bool": False, "str": "", "ScalarType": torch.float32}
        values: Mapping[str, Callable[[], Any]] = {
            "Tensor": lambda: self.tensor(shape),
            "List[Tensor]": lambda: [
                self.tensor(() if name == "state_steps" else self.shape)
                for _ in range(0 if name == "max_exp_avg_sqs" else each)
            ],
            "List[number]": lambda: [NUMBER] * each,
            "List[bool]": lambda: [True] * (argument.N or 1),
        }
        return values[kind]() if kind in values else simple.get(kind, NUMBER)


def _from_schema(op: Any, maker: _Maker) -> Call:
    """Return a call with values for the arguments without a default."""
    arguments = [a for a in op._schema.arguments if not a.has_default_value()]
    lists = sum(str(a.type) == "List[Tensor]" for a in arguments)
    each = (0, 2, 1)[min(lists, 2)]
    args = [maker.value(a, each) for a in arguments if not a.kwarg_only]
    kwargs = {a.name: maker.value(a, each) for a in arguments if a.kwarg_only}
    leaves, tree = tree_flatten((tuple(args), kwargs))
    return Call(op, tuple(leaves), tree)
