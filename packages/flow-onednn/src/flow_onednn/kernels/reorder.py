"""Transpositions, which oneDNN computes as reorders."""

from __future__ import annotations

from flow_core.authoring.specs import KernelQuery, KernelSpec
from flow_onednn.primitives import create, plain, row_major
from flow_onednn.recipes import Operand, Problem, Recipe, is_float, kernel, recipe


def _cook(p: Problem) -> Recipe | None:
    shape, perm, dtype = p.inputs[0].shape, p.attrs["perm"], p.inputs[0].dtype.name
    if not shape:
        return None
    strides = row_major(shape)
    source = plain([shape[i] for i in perm], dtype, [strides[i] for i in perm])
    target = plain([shape[i] for i in perm], dtype)
    made = create("reorder", source, target)
    return recipe(made, (Operand("src", 0, source), Operand("dst", 0, target, True)))


def _accepts(query: KernelQuery) -> bool:
    """Return whether the elements are floats or bytes, which float32 represents exactly."""
    x = query.inputs[0]
    return is_float(query) or (x.dtype.name in ("int8", "uint8") and x.size > 0)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("onednn_reorder", _cook, accepts=_accepts),
    kernel("transpose", _cook),
)
