"""Ops as classes: the attributes and methods of a class are the fields of an `OpSpec`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from flow_core.base.errors import PluginError, nearest
from flow_core.ir.graph import AttrValue, TensorType
from flow_core.ops.build import GradContext, Sym
from flow_core.plugins.specs import InferContext, LocalContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import Signatures

Types = tuple[TensorType, ...]
Attributes = Mapping[str, AttrValue]
Gradients = Sequence[Sym | None]
Rng = np.random.Generator
Samples = Iterator[Sample]

FIELDS = tuple(field.name for field in fields(OpSpec))


class OpDef:
    """The definition of an op: a subclass whose attributes and methods are fields of `OpSpec`.

    The docstring of a subclass is the op's ``doc``.  If the subclass is a dataclass, each instance
    defines an op, as a row of a table.  Other public names of a subclass need an annotation.

    Raises:
        PluginError: a name is neither a field nor annotated, such as a misspelled one.
    """

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attributes
    infer: Callable[[InferContext], Sequence[TensorType]]
    sbp: Callable[[SbpContext], Signatures]
    localize: Callable[[LocalContext], Attributes]
    gradient: Callable[[GradContext], Gradients] | None
    reference: Callable[..., Any] | None
    samples: Callable[[Any], Any] | None
    elementwise: bool
    alias: int | None
    inplace: tuple[int, ...]
    mutates: tuple[int, ...]
    mutates_if: str | None
    numbers: tuple[int, ...]
    effect: bool
    random: bool
    per_device: str | None
    work: Callable[[SbpContext], float] | None
    host: bool
    doc: str
    internal: bool

    def __init_subclass__(cls) -> None:
        known = {*FIELDS, *inspect.get_annotations(cls), *dir(cls.__base__)}
        for name in vars(cls):
            if name not in known and not name.startswith("_"):
                raise PluginError(
                    f"defining an op by the class {cls.__name__}",
                    found=f"the name {name!r}, which is no field of OpSpec",
                    hint=nearest(name, FIELDS) or "annotate it if it is meant for other methods",
                )

    def spec(self) -> OpSpec:
        """Return the record that a plugin registers."""
        text = "" if is_dataclass(self) else vars(type(self)).get("__doc__") or ""
        given = {name: getattr(self, name) for name in FIELDS if hasattr(self, name)}
        return OpSpec(**{"doc": inspect.cleandoc(text).replace("\n", " "), **given})


def specs(*ops: OpDef | type[OpDef]) -> tuple[OpSpec, ...]:
    """Return the specs of ops, given as classes or as rows of a table."""
    return tuple((op() if isinstance(op, type) else op).spec() for op in ops)
