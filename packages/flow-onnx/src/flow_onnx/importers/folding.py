"""Computation of ops whose inputs are known while the job is defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flow_core.authoring import specs
from flow_core.authoring.specs import InferContext, OpSpec, TensorType, tensor_type
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import SourceLine
from flow_core.base.shapes import Shape

LARGEST_KNOWN = 2**28
"""Maximum bytes of one value that is computed while the job is defined, and of all of a model."""


class TooLarge(Exception):
    """A value that is known while the job is defined would need too much memory."""


@dataclass(slots=True)
class Folder:
    """Computes ops with the references of their specs, after a check of their sizes."""

    ops: Mapping[str, OpSpec]  # the specs of ops by type
    at: SourceLine | None = None  # the line of the user's program

    def run(self, op: str, inputs: Sequence[Known], attrs: Mapping[str, Any]) -> Any:
        """Compute an op; returns a `Known`, or a tuple of them if the op has several outputs.

        Raises:
            InferenceError: the op does not accept its inputs.
            TooLarge: the outputs need too much memory.
        """
        spec = self.ops[op]
        full, reference = {**spec.attrs, **attrs}, spec.reference
        types = tuple(tensor_type(x.shape, x.dtype) for x in inputs)
        outputs = tuple(spec.infer(InferContext(op, op, types, full, self.at)))
        for type_ in outputs:
            self.allow(type_.shape, type_.dtype.itemsize)
        with np.errstate(all="ignore"):
            found: Any = reference and reference(*map(_wide, inputs), **full)
            arrays = found if isinstance(found, tuple) else (found,)
            known = tuple(self._of(x, type_) for x, type_ in zip(arrays, outputs, strict=False))
        return known if len(known) > 1 else known[0]

    def _of(self, array: Any, type_: TensorType) -> Known:
        converted = np.asarray(array).astype(type_.dtype.numpy, copy=False)
        return Known(converted.reshape(type_.shape), self)

    def allow(self, shape: Sequence[int], itemsize: int) -> None:
        """Raise `TooLarge` for a shape that needs more than `LARGEST_KNOWN` bytes."""
        if prod(shape) * itemsize > LARGEST_KNOWN:
            raise TooLarge(prod(shape) * itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value known while the job is defined, which importers treat like a blob."""

    array: Any  # the value
    folder: Folder  # computes ops on it

    @property
    def shape(self) -> Shape:
        """The shape."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> DType:
        """The element type, which must be one of flow."""
        return as_dtype(self.array.dtype)


def _wide(x: Known) -> Any:
    """Return the array of a value; 16-bit numbers are computed in float32, as kernels do."""
    return x.array.astype(x.dtype.accumulate.numpy, copy=False)


def emit(op: str, *inputs: Any, **attrs: Any) -> Any:
    """Add an op to the job being traced, or compute it if its inputs are known.

    Returns:
        A blob or a `Known`, or a tuple of these if the op has several outputs.
    """
    if inputs and isinstance(inputs[0], Known):
        return inputs[0].folder.run(op, inputs, attrs)
    return specs.emit(op, *inputs, **attrs)


def filled(like: Any, shape: Sequence[int], value: float = 0) -> Any:
    """Return a constant of the kind and element type of ``like``."""
    if not isinstance(like, Known):
        return specs.emit("constant", value=value, dtype=like.dtype.name, shape=tuple(shape))
    like.folder.allow(shape, like.array.itemsize)
    return Known(np.full(shape, value, like.array.dtype), like.folder)
