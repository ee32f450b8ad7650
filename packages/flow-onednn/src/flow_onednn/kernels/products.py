"""Matrix products that go straight into a variable: the gradient of a weight, and SGD.

The gradient is as large as the weight.  Stored, it is written and read again by the update;
here the smaller operand is multiplied by the rate and the product added to the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from flow_core.base.alignment import aligned
from flow_core.device import Launch
from flow_core.ir.graph import AttrValue
from flow_core.plugins.specs import BindContext, KernelSpec
from flow_onednn.kernels import matmul
from flow_onednn.kernels.loops import FLOAT_BYTES, null, pointer
from flow_onednn.native import compiler
from flow_onednn.recipes import Cooked, Problem, is_float32, kernel


@dataclass(frozen=True, slots=True)
class Step:
    """A product of which one operand is multiplied by the rate first.

    Attributes:
        product: the product, added to what is in its result.
        which: the operand, 0 or 1.
        size: its elements.
    """

    product: Cooked
    which: int
    size: int

    @property
    def workspace(self) -> int:
        """Bytes for the multiplied operand, and for the product."""
        return self._bytes + self.product.workspace

    @property
    def _bytes(self) -> int:
        return aligned(FLOAT_BYTES * self.size)

    @property
    def reorders(self) -> int:
        """Bytes that the product copies."""
        return self.product.reorders

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return self.product.allocates

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches: multiply the operand, add the product."""
        model, *operands, rate = ctx.inputs[:4]
        factor = pointer(ctx.inputs[4]) if len(ctx.inputs) > 4 else null()
        own = ctx.workspace[: FLOAT_BYTES * self.size].view("float32")
        given, operands[self.which] = operands[self.which], own
        scaled = partial(
            compiler.native().step_of,
            pointer(given), pointer(own), pointer(rate), factor, self.size, ctx.attrs["scale"],
        )  # fmt: skip
        rest = ctx.workspace[self._bytes :]
        inner = replace(ctx, inputs=tuple(operands), outputs=(model,), workspace=rest)
        return [scaled, *self.product.bind(inner)]


def cook(p: Problem) -> Step | None:
    """The recipe of ``onednn_matmul_sgd``."""
    model, *operands = p.inputs[:3]
    if not compiler.available() or len(model.shape) != 2:
        return None
    attrs: dict[str, AttrValue] = {
        **{k: p.attrs[k] for k in ("transpose_a", "transpose_b")},
        "alpha": 1.0, "activation": "", "accumulate": True, "math": p.attrs.get("math", ""),
    }  # fmt: skip
    items = tuple(sorted(attrs.items()))
    product = matmul.cook(Problem("onednn_matmul", tuple(operands), (model,), items))
    if product is None:
        return None
    which = min((0, 1), key=lambda k: operands[k].size)
    return Step(product, which, operands[which].size)


KERNELS: tuple[KernelSpec, ...] = (kernel("onednn_matmul_sgd", cook, accepts=is_float32),)
