"""Matrix products with weights that another op has packed in the layout of the primitive.

Other products pack their weights during execution, one panel at a time. If several devices of a
process multiply few rows each by the same weight, it is less work to pack the weight once.  Outside
of training, bfloat16 weights are packed once for all steps.  See `flow_onednn.passes.pack`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.authoring.backends import (
    bitwise_equal_in_trials,
    canceling_operands,
    multiplications,
)
from flow_core.authoring.specs import Attrs, AttrValue, BindContext, KernelQuery, KernelSpec
from flow_core.base.arrays import Array
from flow_onednn.kernels import partitioned_matmul
from flow_onednn.kernels.matmul import ACTIVATIONS, Span
from flow_onednn.kernels.nan_relu import preserve_nan
from flow_onednn.kernels.partitioned_matmul import split_rows
from flow_onednn.kernels.upcast import is_half
from flow_onednn.library import library
from flow_onednn.primitives import Md, PostOps, Primitive, any_layout, create, nbytes, plain
from flow_onednn.recipes import (
    Implementation,
    Known,
    Operand,
    Problem,
    Recipe,
    is_product,
    kernel,
    recipe,
)  # fmt: skip
from flow_onednn.threads import whole_budget

PACK, PRODUCT = "onednn_pack", "onednn_packed_matmul"


def _product(attrs: dict[str, AttrValue], has_bias: bool, dtype: str) -> Primitive | None:
    """Create the product of row-major rows and weights in the layout that the library selects.

    A pass queries this layout before the cores are divided among streams, so the layout is selected
    for the whole thread budget.
    """
    with whole_budget():
        layout = any_layout((attrs["deep"], attrs["columns"]), dtype)
        return _product_of(attrs, has_bias, dtype, layout)


def _product_of(
    attrs: dict[str, AttrValue], has_bias: bool, dtype: str, weights: Md
) -> Primitive | None:
    rows, deep, columns = (attrs[k] for k in ("rows", "deep", "columns"))
    return create(
        "matmul", plain((rows, deep), dtype), weights,
        plain((1, columns), dtype) if has_bias else library().ffi.NULL,
        plain((rows, columns), "float32" if attrs["wide"] else dtype),
        post=PostOps(activation=ACTIVATIONS[attrs["activation"]]), math=attrs["math"],
    )  # fmt: skip


def _weights(attrs: dict[str, AttrValue], dtype: str) -> Md:
    """Return the descriptor of the variable's weights as a (deep, columns) matrix."""
    deep, columns = attrs["deep"], attrs["columns"]
    strides = (1, deep) if attrs["transpose_b"] else (columns, 1)
    return plain((deep, columns), dtype, strides)


def _build_pack(p: Problem) -> Recipe | None:
    dtype = p.inputs[0].dtype.name
    product = _product(p.attrs, p.attrs["bias"], dtype)
    if product is None:
        return None
    source, target = _weights(p.attrs, dtype), product.md("weights")
    made = create("reorder", source, target)
    return recipe(made, (Operand("src", 0, source), Operand("dst", 0, target, True)))


def _build_product(p: Problem) -> Implementation | None:
    attrs, has_bias, dtype = p.attrs, len(p.inputs) == 3, p.inputs[0].dtype
    product, out = _product(attrs, has_bias, dtype.name), p.outputs[0]
    if product is None:
        return None
    deep, columns, weights = attrs["deep"], attrs["columns"], product.md("weights")

    def operands(span: Span, result: str) -> Iterator[Operand]:
        low, rows = span[0], span[1] - span[0]
        yield Operand("src", 0, plain((rows, deep), dtype.name), False, low * deep * dtype.itemsize)
        yield Operand("weights", 1, weights)
        at = low * columns * out.dtype.itemsize
        yield Operand("dst", 0, plain((rows, columns), result), True, at)
        if has_bias:
            yield Operand("bias", 2, plain((1, columns), dtype.name))

    def part(span: Span, result: str = dtype.name) -> Recipe | None:
        how = {**attrs, "rows": span[1] - span[0], "wide": result != dtype.name}
        made = _product_of(how, has_bias, dtype.name, weights)
        return recipe(made, tuple(operands(span, result)))

    rows = attrs["rows"]
    split = split_rows(rows, part) if is_half(out) else None
    return split or recipe(product, tuple(operands((0, rows), out.dtype.name)))


def attrs_of(p: Problem) -> dict[str, AttrValue]:
    """Return the attributes of the pack and product ops that replace a matrix product."""
    rows, deep = p.inputs[0].shape
    return {
        "rows": rows, "deep": deep, "columns": p.outputs[0].shape[-1],
        "activation": p.attrs.get("activation", ""), "math": p.attrs.get("math", ""),
        "wide": p.attrs.get("wide", False),
    }  # fmt: skip


@Known
def packed_size(p: Problem) -> int | None:
    """Return the number of elements in a matrix product's packed weights.

    Returns:
        The number; None if the product does not pack its weights during execution, or if trial runs
        show that packing them before changes the bits of the product.
    """
    attrs, direct = attrs_of(p), partitioned_matmul.build(p)
    product = _product(attrs, len(p.inputs) == 3, p.inputs[0].dtype.name)
    if product is None or not isinstance(direct, Recipe) or direct.reorders:
        return None
    size = nbytes(product.md("weights")) // 4
    packs = product.scratchpad < direct.primitive.scratchpad
    return size if packs and _same_bits(p, attrs, size, direct) else None


def constant_size(p: Problem) -> int | None:
    """Return the number of elements of weights that are packed once; None without a primitive."""
    dtype = p.inputs[0].dtype
    product = _product(attrs_of(p), len(p.inputs) == 3, dtype.name)
    return None if product is None else nbytes(product.md("weights")) // dtype.itemsize


def _same_bits(p: Problem, attrs: dict[str, AttrValue], size: int, direct: Implementation) -> bool:
    transposed, has_bias = p.attrs["transpose_b"], len(p.inputs) == 3
    how = {**attrs, "transpose_b": transposed, "bias": has_bias}
    pack, product = (
        build(Problem("", p.inputs, p.outputs, tuple(given.items())))
        for build, given in ((_build_pack, how), (_build_product, attrs))
    )
    if pack is None or product is None or pack.reorders or product.reorders:
        return False

    def same(rng: np.random.Generator) -> bool:
        a, b = canceling_operands(rng, p.inputs[:2], False, transposed)
        bias = [rng.standard_normal(t.shape, np.float32) for t in p.inputs[2:]]
        wanted, found = (np.empty(p.outputs[0].shape, np.float32) for _ in range(2))
        packed = np.empty(size, np.float32)
        _run(direct, p, [a, b, *bias], wanted)
        _run(pack, p, [b], packed)
        _run(product, p, [a, packed, *bias], found)
        return np.array_equal(wanted, found)

    return bitwise_equal_in_trials(multiplications(p.inputs[:2], transposed), same)


def _run(implementation: Implementation, p: Problem, operands: list[Array], out: Array) -> None:
    query = KernelQuery(p.op, Attrs(p.attrs), p.inputs, p.outputs)
    workspace = np.empty(implementation.workspace, np.uint8)
    for launch in implementation.bind(BindContext(query, tuple(operands), (out,), workspace)):
        launch()


KERNELS: tuple[KernelSpec, ...] = (
    kernel(PACK, _build_pack, accepts=is_product),
    kernel(PRODUCT, preserve_nan(_build_product), accepts=is_product),
)
