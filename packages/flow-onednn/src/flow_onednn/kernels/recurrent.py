"""The kernels that call `native/recurrent.c`: recurrent layers over sequences."""

from __future__ import annotations

from functools import partial

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelQuery, KernelSpec
from flow_core.base.alignment import aligned
from flow_onednn.kernels.concurrent import supported
from flow_onednn.kernels.loops import FLOAT_BYTES, loop_kernel, null, pointer
from flow_onednn.library import library
from flow_onednn.native.calls import call
from flow_onednn.primitives import void_pointer


def _accepts(query: KernelQuery) -> bool:
    types = (*query.inputs, *query.outputs)
    return supported() and all(t.dtype.name == "float32" and t.size for t in types)


def _position_bytes(query: KernelQuery) -> int:
    """Return the bytes of all parts at one position."""
    batch, _, rows = query.inputs[0].shape
    return aligned(batch * rows * FLOAT_BYTES)


def _kernel(op: str, function: str, inputs: int, has_scratch: bool = True) -> KernelSpec:
    """Return the kernel of an op; the C function takes null pointers for absent inputs."""

    def bind(ctx: BindContext) -> Launch:
        batch, steps, _ = ctx.query.inputs[0].shape
        given = [pointer(x) for x in ctx.inputs]
        absent = [null()] * (inputs - len(given))
        scratch = [ctx.workspace] if has_scratch else []
        arrays = (*given, *absent, *map(pointer, (*ctx.outputs, *scratch)))
        sizes = batch, steps, ctx.query.inputs[1].shape[1], int(bool(ctx.attrs["reverse"]))
        sgemm = void_pointer(library().lib.dnnl_sgemm)
        fail = partial(library().check, what=function)
        return call(function, sgemm, *arrays, *sizes, fail=fail)

    return loop_kernel(op, bind, _accepts, _position_bytes if has_scratch else None)


KERNELS: tuple[KernelSpec, ...] = (
    _kernel("lstm", "lstm_forward", 4, has_scratch=False),
    _kernel("lstm_grad", "lstm_backward", 7),
    _kernel("gru", "gru_forward", 4),
    _kernel("gru_grad", "gru_backward", 8),
)
