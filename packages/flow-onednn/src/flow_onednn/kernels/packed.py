"""Matrix products of weights that are packed before, in the layout that the primitive chooses.

A product packs its weights while it runs, a panel at a time.  Where several devices of a process
multiply few rows each by one weight, packing it once is less work; see `flow_onednn.passes.pack`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.authoring.backends import agree, factors, multiplications
from flow_core.authoring.specs import Attrs, BindContext, KernelQuery, KernelSpec
from flow_onednn.kernels import shares
from flow_onednn.kernels.guarded import guarded
from flow_onednn.kernels.matmul import ACTIVATIONS
from flow_onednn.library import library
from flow_onednn.primitives import Md, PostOps, Primitive, chosen, create, nbytes, plain
from flow_onednn.recipes import (
    Cooked,
    Operand,
    Problem,
    Recipe,
    cached,
    is_float32,
    kernel,
    recipe,
)  # fmt: skip
from flow_onednn.threads import of_process

PACK, PRODUCT = "onednn_pack", "onednn_packed_matmul"


def _product(attrs: dict[str, Any], has_bias: bool) -> Primitive | None:
    """The product of plain rows and weights in whatever layout is best.

    That is found by a pass, which does not know how streams will divide the cores: the layout must
    not depend on it.
    """
    rows, deep, columns = (attrs[k] for k in ("rows", "deep", "columns"))
    null = library().ffi.NULL
    with of_process():
        return create(
            "matmul", plain((rows, deep), "float32"), chosen((deep, columns), "float32"),
            plain((1, columns), "float32") if has_bias else null, plain((rows, columns), "float32"),
            post=PostOps(activation=ACTIVATIONS[attrs["activation"]]), math=attrs["math"],
        )  # fmt: skip


def _weights(attrs: dict[str, Any]) -> Md:
    """The weights as the variable has them, seen as (deep, columns)."""
    deep, columns = attrs["deep"], attrs["columns"]
    strides = (1, deep) if attrs["transpose_b"] else (columns, 1)
    return plain((deep, columns), "float32", strides)


def _cook_pack(p: Problem) -> Recipe | None:
    product = _product(p.attrs, p.attrs["bias"])
    if product is None:
        return None
    source, target = _weights(p.attrs), product.md("weights")
    made = create("reorder", source, target)
    return recipe(made, (Operand("src", 0, source), Operand("dst", 0, target, True)))


def _cook_product(p: Problem) -> Recipe | None:
    has_bias = len(p.inputs) == 3
    product, columns = _product(p.attrs, has_bias), p.attrs["columns"]
    if product is None:
        return None
    rows = plain(p.inputs[0].shape, "float32")
    operands = [
        Operand("src", 0, rows),
        Operand("weights", 1, product.md("weights")),
        Operand("dst", 0, plain(p.outputs[0].shape, "float32"), True),
    ]
    if has_bias:
        operands.append(Operand("bias", 2, plain((1, columns), "float32")))
    return recipe(product, operands)


def attrs_of(p: Problem) -> dict[str, Any]:
    """The attributes of the two ops that do what a ``matmul`` or ``onednn_matmul`` does."""
    rows, deep = p.inputs[0].shape
    return {
        "rows": rows, "deep": deep, "columns": p.outputs[0].shape[-1],
        "activation": p.attrs.get("activation", ""), "math": p.attrs.get("math", ""),
    }  # fmt: skip


@cached
def packed_size(p: Problem) -> int | None:
    """Elements of the packed weights of a product; None where packing them gains nothing.

    It does where the primitive packs by itself, and where the product's bits stay what they are
    for devices that do not share their weights: that is tried out.
    """
    attrs, direct = attrs_of(p), shares.cook(p)
    product = _product(attrs, len(p.inputs) == 3)
    if product is None or not isinstance(direct, Recipe) or direct.reorders:
        return None
    size = nbytes(product.md("weights")) // 4
    packs = product.scratchpad < direct.primitive.scratchpad
    return size if packs and _same_bits(p, attrs, size, direct) else None


def _same_bits(p: Problem, attrs: dict[str, Any], size: int, direct: Cooked) -> bool:
    transposed, has_bias = p.attrs["transpose_b"], len(p.inputs) == 3
    how = {**attrs, "transpose_b": transposed, "bias": has_bias}
    pack, product = (
        cook(Problem("", p.inputs, p.outputs, tuple(given.items())))
        for cook, given in ((_cook_pack, how), (_cook_product, attrs))
    )
    if pack is None or product is None or pack.reorders or product.reorders:
        return False

    def same(rng: np.random.Generator) -> bool:
        a, b = factors(rng, p.inputs[:2], False, transposed)
        bias = [rng.standard_normal(t.shape, np.float32) for t in p.inputs[2:]]
        wanted, found = (np.empty(p.outputs[0].shape, np.float32) for _ in range(2))
        packed = np.empty(size, np.float32)
        _run(direct, p, [a, b, *bias], wanted)
        _run(pack, p, [b], packed)
        _run(product, p, [a, packed, *bias], found)
        return np.array_equal(wanted, found)

    return agree(multiplications(p.inputs[:2], transposed), same)


def _run(cooked: Cooked, p: Problem, operands: list[Any], out: Any) -> None:
    query = KernelQuery(p.op, Attrs(p.attrs), p.inputs, p.outputs)
    workspace = np.empty(cooked.workspace, np.uint8)
    for launch in cooked.bind(BindContext(query, tuple(operands), (out,), workspace)):
        launch()


KERNELS: tuple[KernelSpec, ...] = (
    kernel(PACK, _cook_pack, accepts=is_float32),
    kernel(PRODUCT, guarded(_cook_product), accepts=is_float32),
)
