"""Ops as classes: the attributes and methods of a class are the fields of an `OpSpec`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

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
SCHEMA = re.compile(r"(\w*)\(([\w?*, ]*)\)(?: -> ([\w?*, ]+))?")


class OpDef:
    """The definition of an op: a subclass whose attributes and methods are fields of `OpSpec`.

    The attribute ``schema`` has the type of the op, its inputs and its outputs, such as
    ``"layer_norm(x, beta?, gamma?) -> y, mean, inv_variance"``.  The docstring of a subclass is the
    op's ``doc``.  If the subclass is a dataclass, each instance defines an op, as a row of a table
    that has the type; the schema is then ``"(x) -> y"``.  Other public names need an annotation.

    Raises:
        PluginError: a name is neither a field nor annotated, such as a misspelled one, or the
            schema has another form.
    """

    schema: ClassVar[str]
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
        annotated = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
        known = {*FIELDS, *annotated, *dir(cls.__base__), "schema"}
        for name in vars(cls):
            if name not in known and not name.startswith("_"):
                hint = nearest(name, FIELDS) or "annotate it if it is meant for other methods"
                raise _invalid(cls, f"the name {name!r}, which is no field of OpSpec", hint)
        if "schema" in vars(cls):
            match = SCHEMA.fullmatch(cls.schema)
            if match is None:
                raise _invalid(cls, f"the schema {cls.schema!r}", 'write "type(inputs) -> outputs"')
            if match[1]:
                cls.type = match[1]
            names = (tuple(re.findall(r"[\w?*]+", text or "")) for text in match.group(2, 3))
            cls.inputs, cls.outputs = names

    def spec(self) -> OpSpec:
        """Return the record that a plugin registers."""
        text = "" if is_dataclass(self) else vars(type(self)).get("__doc__") or ""
        given = {name: getattr(self, name) for name in FIELDS if hasattr(self, name)}
        return OpSpec(**{"doc": inspect.cleandoc(text).replace("\n", " "), **given})


def _invalid(cls: type[OpDef], found: str, hint: str) -> PluginError:
    return PluginError(f"defining an op by the class {cls.__name__}", found=found, hint=hint)


def specs(*ops: OpDef | type[OpDef]) -> tuple[OpSpec, ...]:
    """Return the specs of ops, given as classes or as rows of a table."""
    return tuple((op() if isinstance(op, type) else op).spec() for op in ops)
