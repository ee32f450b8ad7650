"""Products of few rows, in C loops that read the weights once.

Transposed weights are read as they lie.  The library copies them to another layout during each
launch, except for one row with AVX2.  With AVX-512, 1 x 784 x 512 takes 41 us with the library and
20 us with the loop, and two rows take 43 us and 26 us; from three rows on, the difference is small.

Outside of training, `native/panels.c` reads panels of weights that are packed once.  Each thread
reads the same panels in each step, so that they stay in its core's cache.  Another processor takes
5.9 us for 1 x 784 x 512, and 7.6 us with the library; for 8 rows, 13.7 and 18.1 us with AVX-512, 30
and 41 us with AVX2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext, KernelSpec
from flow_onednn.kernels.loops import loop_kernel, null, pointer
from flow_onednn.library import library
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.panel_layout import pack
from flow_onednn.recipes import Problem

MOST_ROWS, LEAST_COLUMNS = 2, 4


@dataclass(frozen=True, slots=True)
class FewRows:
    """A product that the C loop computes, with scale, bias and relu."""

    alpha: float  # the scale of the product
    relu: bool  # whether relu is applied; it propagates NaN
    workspace: int = 0
    reorders: int = 0
    allocates: bool = False

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launch on the op's arrays."""
        x, w, *bias = ctx.inputs
        (rows, deep), columns = x.shape, w.shape[0]
        added = pointer(bias[0]) if bias else null()
        arrays = pointer(x), pointer(w), added, pointer(ctx.outputs[0])
        return [call("few_rows", *arrays, rows, deep, columns, self.alpha, self.relu)]


def _least_rows() -> int:
    """Return the number of rows from which the loop is faster."""
    return 1 if "512" in library().isa else 2


def build(p: Problem) -> FewRows | None:
    """Build ``matmul`` or ``onednn_matmul`` if the loop computes it, and is faster."""
    a, b = p.inputs[:2]
    attrs = p.attrs
    activation, alpha = attrs.get("activation", ""), attrs["alpha"]
    fits = (
        len(a.shape) == len(b.shape) == 2
        and _least_rows() <= a.shape[0] <= MOST_ROWS
        and b.shape[0] >= LEAST_COLUMNS
        and (attrs["transpose_a"], attrs["transpose_b"]) == (False, True)
        and all(t.dtype.name == "float32" for t in (*p.inputs, *p.outputs))
        and not attrs.get("accumulate")
        and not attrs.get("math")
        and activation in ("", "relu")
        and (alpha == 1.0 or len(p.inputs) == 2)
    )
    return FewRows(alpha, activation == "relu") if fits and compiler.available() else None


# --- packed weights

PACK, PRODUCT = "onednn_pack_panels", "onednn_panels"
PANEL_ROWS = 8
"""Maximum number of rows, which are one block; with more, the library is as fast."""


def _pack(ctx: BindContext) -> Launch:
    weights = ctx.inputs[0].T if ctx.attrs["transpose_b"] else ctx.inputs[0]
    return partial(pack, weights, ctx.outputs[0])


def _product(ctx: BindContext) -> Launch:
    x, packed, *bias = ctx.inputs
    arrays = pointer(x), pointer(packed), pointer(bias[0]) if bias else null()
    (y,), relu = ctx.outputs, ctx.attrs["activation"] == "relu"
    return call("panels", *arrays, pointer(y), *x.shape, y.shape[1], relu)


KERNELS: tuple[KernelSpec, ...] = (loop_kernel(PACK, _pack), loop_kernel(PRODUCT, _product))
