"""Ops whose kernels are Python functions of a program.

One op type represents all such ops; its attribute ``op`` is a key in a table that the process
keeps.  To infer the output types, the function is called on arrays of ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import InferenceError
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Types, specs
from flow_core.plugins.specs import REQUIRED, InferContext

PYTHON_KERNEL = "python_kernel"


@dataclass(frozen=True, slots=True)
class Bound:
    """The source of an input of a backward op: a value of the forward op."""

    kind: str  # "input", "output", or "output_grad" for the gradient of an output
    name: str  # the name of that input or output


@dataclass(frozen=True, slots=True)
class Backward:
    """The computation of the gradients of an op."""

    op: str  # the backward op, which computes the gradients
    inputs: Mapping[str, Bound]  # the source of each input of the backward op, by name
    # For the name of each input of the forward op, the name of the output of the backward op that
    # is its gradient.
    gradients: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PythonOp:
    """An op that a program defines."""

    name: str  # type of the op, as programs call it
    inputs: tuple[str, ...]  # names of the inputs and outputs
    outputs: tuple[str, ...]
    # The kernel, which maps a tuple of arrays to one array, or to one array per output.
    function: Callable[[tuple[Any, ...]], Any]
    # Names of attributes that programs may set; the function does not receive them.
    attrs: tuple[str, ...] = ()
    # Computation of the gradients, or None if there is none.
    backward: Backward | None = field(default=None)


known: dict[str, PythonOp] = {}
"""The ops that this process has registered, by name."""


def results_of(op: PythonOp, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Call an op's function, and return one array per output.

    Raises `InferenceError` if the function returns another number of arrays.
    """
    found = op.function(inputs)
    arrays = tuple(found) if isinstance(found, list | tuple) else (found,)
    if len(arrays) != len(op.outputs):
        raise InferenceError(
            f"kernel of {op.name!r}",
            found=f"{len(arrays)} arrays",
            allowed=f"one for each of {', '.join(op.outputs)}",
        )
    return tuple(map(np.asarray, arrays))


def _result_dtype(result: Any, inputs: tuple[Array, ...]) -> Any:
    """Return the element type of a result, which is the inputs' type if promotion produced float64.

    Python numbers and numpy's promotion rules may widen a result unintentionally.
    """
    types = {x.dtype for x in inputs if x.dtype.kind == "f"}
    alike = result.dtype == np.float64 and len(types) == 1
    return types.pop() if alike else result.dtype


class PythonKernel(OpDef):
    """An op whose kernel is a Python function of the program."""

    schema = f"{PYTHON_KERNEL}(x*) -> out*"
    attrs = {"op": REQUIRED}
    reference = staticmethod(lambda *inputs, op: results_of(known[op], inputs))

    def infer(self, ctx: InferContext) -> Types:
        op = known.get(ctx.attrs["op"])
        if op is None:
            ctx.fail(f"op={ctx.attrs['op']!r}", f"one of {', '.join(known) or 'no ops'}")
        ones = tuple(np.ones(t.shape, t.dtype.numpy) for t in ctx.inputs)
        return tuple(
            tensor_type(x.shape, as_dtype(_result_dtype(x, ones))) for x in results_of(op, ones)
        )

    def gradient(self, g: GradContext) -> Gradients:
        op = known[g.attrs["op"]]
        back = op.backward
        if back is None:
            return (None,) * len(g.inputs)
        of = {
            **{("input", name): x for name, x in zip(op.inputs, g.inputs, strict=True)},
            **{("output", name): y for name, y in zip(op.outputs, g.outputs, strict=True)},
            **{("output_grad", name): d for name, d in zip(op.outputs, g.grads, strict=True)},
        }
        behind = known[back.op]
        given = [of[back.inputs[name].kind, back.inputs[name].name] for name in behind.inputs]
        if any(x is None for x in given):
            return (None,) * len(g.inputs)
        made = g.all(PYTHON_KERNEL, *(x for x in given if x is not None), op=back.op)
        found = dict(zip(behind.outputs, made, strict=True))
        return tuple(found.get(back.gradients.get(name, "")) for name in op.inputs)


OPS = specs(PythonKernel)
