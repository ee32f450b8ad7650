"""Ops whose kernels are Python functions of a program.

One op type stands for all of them; its attribute ``op`` names one in a table of the process.  What
an op gives for inputs of some types is found by calling its function on ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import InferenceError
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec

PYTHON_KERNEL = "python_kernel"


@dataclass(frozen=True, slots=True)
class Bound:
    """What an input of a backward op is: a value of the forward op.

    Attributes:
        kind: "input", "output", or "output_grad" for the gradient of an output.
        name: the name of that input or output.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Backward:
    """How the gradients of an op are computed.

    Attributes:
        op: the op that does so.
        inputs: what each of its inputs is, by name.
        gradients: the name of its output that is the gradient of an input, by the input's name.
    """

    op: str
    inputs: Mapping[str, Bound]
    gradients: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PythonOp:
    """An op of a program.

    Attributes:
        name: its type, as programs call it.
        inputs, outputs: their names.
        function: takes a tuple of arrays; gives an array, or one per output.
        attrs: names of attributes that programs may set, of which the function sees nothing.
        backward: its gradients, None for none.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Callable[[tuple[Any, ...]], Any]
    attrs: tuple[str, ...] = ()
    backward: Backward | None = field(default=None)


known: dict[str, PythonOp] = {}
"""The ops of this process, by name."""


def results_of(op: PythonOp, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """What an op's function gives for some arrays, an array per output.

    Raises:
        InferenceError: another number of arrays.
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


def _infer(ctx: InferContext) -> tuple[TensorType, ...]:
    op = known.get(ctx.attrs["op"])
    if op is None:
        ctx.fail(f"op={ctx.attrs['op']!r}", f"one of {', '.join(known) or 'no ops'}")
    ones = tuple(np.ones(t.shape, t.dtype.numpy) for t in ctx.inputs)
    return tuple(tensor_type(x.shape, as_dtype(_narrow(x, ones))) for x in results_of(op, ones))


def _narrow(result: Any, inputs: tuple[Array, ...]) -> Any:
    """The element type of a result; a wider one than that of all inputs is theirs, as numbers
    of Python and numpy's own rules make it wider by chance.
    """
    types = {x.dtype for x in inputs if x.dtype.kind == "f"}
    alike = result.dtype == np.float64 and len(types) == 1
    return types.pop() if alike else result.dtype


def _gradient(g: GradContext) -> tuple[Sym | None, ...]:
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


def _call(*inputs: Array, op: str) -> tuple[Array, ...]:
    return results_of(known[op], inputs)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type=PYTHON_KERNEL,
        inputs=("x*",),
        outputs=("out*",),
        attrs={"op": REQUIRED},
        infer=_infer,
        gradient=_gradient,
        reference=_call,
        doc="An op whose kernel is a Python function of the program.",
    ),
)
