"""The rules that DTensor declares for a call: layouts that it accepts without communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_flatten

from flow_rules import layouts
from flow_rules.dtensor.samples import Call
from flow_rules.layouts import B, Layout, Place, Rule, TensorType, shape_of
from flow_rules.prover import NONSENSE, kinds

DEVICES = (2, 3)
"""Numbers of devices of the meshes."""
MOST = 700
"""Of calls with more combinations of layouts of inputs, only those with S, B and P are checked."""
UNKNOWN = object()
"""Stands for shapes of results that are not known yet; None is a possible value."""
REFUSED: tuple[type[Exception], ...] = (*NONSENSE, AssertionError)
"""The exceptions of calls and layouts that DTensor refuses."""
SUPPORTED = ("sum", "max", "min", "avg")


@cache
def propagator() -> Any:
    """Return DTensor's propagator of layouts, in a process group that sends nothing."""
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=max(DEVICES))
    return DTensor._op_dispatcher.sharding_propagator


@cache
def mesh(parts: int) -> DeviceMesh:
    """Return a mesh of one dimension."""
    propagator()
    return DeviceMesh("cpu", list(range(parts)))


def registered() -> set[Any]:
    """Return the ops for which DTensor has rules, without those that it treats otherwise."""
    known = propagator()
    tables = (known.op_strategy_funcs, known.op_single_dim_strategy_funcs, known.op_to_rules)
    return {op for table in tables for op in table} - {*DTensor._op_dispatcher._custom_op_handlers}


def placement_of(layout: Layout) -> Any:
    """Return DTensor's name of a layout."""
    if isinstance(layout, layouts.Split):
        return Shard(layout.axis)
    return Replicate() if layout == B else Partial(layout.op)  # type: ignore[union-attr]


def layout_of(placement: Any) -> Layout | None:
    """Return a placement as a layout, None for kinds that the prover does not know."""
    if type(placement) is Replicate:
        return B
    if type(placement) is Shard:
        return layouts.Split(placement.dim)
    if type(placement) is Partial and placement.reduce_op in SUPPORTED:
        return layouts.Partial(placement.reduce_op)
    return None


def partials(types: Sequence[TensorType]) -> tuple[layouts.Partial, ...] | None:
    """Return the kinds of P, other than P itself, to combine; None if there are too many."""
    for more in (layouts.REPEATABLE, ()):
        if prod(len(kinds(t, DEVICES[0], more)) for t in types) <= MOST:
            return more
    return None


def combinations(types: Sequence[TensorType], parts: int) -> list[tuple[Layout, ...]]:
    """Return all layouts of inputs; none if there are too many."""
    more = partials(types)
    return [] if more is None else list(product(*(kinds(t, parts, more) for t in types)))


class Declared:
    """The rules that DTensor declares for a call."""

    def __init__(self, call: Call, types: Sequence[TensorType], outputs: int) -> None:
        self.call, self.types, self.outputs = call, types, outputs
        self.unknown = 0  # number of rules with placements that the prover does not know
        self._locals: dict[tuple[Rule, int], Any] = {}
        self._meta: Any = UNKNOWN

    def rules(self, parts: int) -> tuple[Rule, ...]:
        """Return the rules on a mesh of a number of devices."""
        return tuple(self._rules(parts))

    def _rules(self, parts: int) -> Iterator[Rule]:
        for inputs in combinations(self.types, parts):
            found = self._propagated(inputs, parts)
            if found is None:
                continue
            outputs = self._outputs(found.output_spec) if self.outputs else ()
            if outputs is None or None in outputs or len(outputs) != self.outputs:
                self.unknown += 1
                continue
            rule = Rule(inputs, outputs)
            # DTensor resizes an ``out`` tensor, which then has the layout of the result
            given = [inputs[i] for i in self.call.into]
            if {*inputs, *outputs} == {B} or given != [*outputs][: len(given)]:
                continue
            if found.use_val_from_redistribute_schema:
                self._locals[rule, parts] = found.redistribute_schema
            yield rule

    def _propagated(self, inputs: Sequence[Layout], parts: int) -> Any:
        """Return what DTensor derives for inputs; None if it refuses or redistributes them."""
        rows = zip(self.call.tensors, inputs, strict=True)
        specs = [self._spec(x, layout, parts) for x, layout in rows]
        args, kwargs = self.call.filled(specs)
        known = propagator()
        schema = OpSchema(self.call.op, tuple(args), kwargs, self._info())
        try:
            if self._meta is UNKNOWN:  # the shapes of the results, the same for all layouts
                self._meta = known._propagate_tensor_meta_non_cached(schema)
            with patch.object(known, "_propagate_tensor_meta_non_cached", lambda _: self._meta):
                found = known.propagate_op_sharding_non_cached(schema)
        except REFUSED:
            return None
        if not found.needs_redistribute:
            return found
        wanted = found.redistribute_schema
        given = tree_flatten((wanted.args_schema, wanted.kwargs_schema))[0]
        placed = [x.placements for x in given if isinstance(x, DTensorSpec)]
        same = placed == [spec.placements for spec in specs]
        return found if found.use_val_from_redistribute_schema and same else None

    def _info(self) -> Any:
        known, op = propagator(), self.call.op
        info = known.op_to_schema_info.get(op)
        return info or known.op_to_schema_info_for_single_dim_strategy.get(op)

    def _spec(self, tensor: Any, layout: Layout, parts: int) -> DTensorSpec:
        meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
        return DTensorSpec(mesh(parts), (placement_of(layout),), tensor_meta=meta)

    def _outputs(self, spec: Any) -> tuple[Any, ...] | None:
        found = tree_flatten(spec)[0] if isinstance(spec, list | tuple) else [spec]
        found = [x for x in found if x is not None]
        if not all(isinstance(x, DTensorSpec) for x in found) or not found:
            return None
        return tuple(layout_of(x.placements[0]) for x in found)

    @property
    def is_local(self) -> bool:
        """Return whether devices may call the op with arguments of their own."""
        known = propagator()
        tables = (
            known.op_to_shape_and_stride_idx,
            known.op_to_scalar_shape_adjuster,
            known.squeeze_op_to_dims_variant,
        )
        return any(self.call.op in table for table in tables)

    def localize(self, place: Place) -> Call:
        """Return the call that a device makes for its parts."""
        schema = self._locals.get((place.rule, place.parts))
        if schema is None:
            op, (args, kwargs) = self.call.op, self.call.filled(self.call.tensors)
        else:
            op, args, kwargs = schema.op, schema.args_schema, schema.kwargs_schema
        args = list(args)
        index = propagator().op_to_shape_and_stride_idx.get(op)
        if isinstance(index, int):
            args[index] = list(shape_of(place.output_regions[0]))
        leaves, tree = tree_flatten((tuple(args), dict(kwargs)))
        tensors = iter(self.call.tensors)
        kinds_of_tensors = (DTensorSpec, torch.Tensor)
        own = [next(tensors) if isinstance(x, kinds_of_tensors) else x for x in leaves]
        return Call(op, tuple(own), tree, self.call.returning)
