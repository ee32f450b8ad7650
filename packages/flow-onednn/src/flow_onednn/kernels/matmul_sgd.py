"""SGD fused with the matrix product that computes the gradient of a weight.

The gradient, which is as large as the weight, is never stored: the smaller operand is multiplied
by the negative learning rate and the product accumulates into the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, KernelSpec
from flow_onednn.kernels import matmul
from flow_onednn.kernels.loops import null, pointer
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.recipes import Problem, is_float32, kernel


@dataclass(frozen=True, slots=True)
class MatmulSgd(matmul.WithCopy):
    """A product of which one operand is first multiplied by the negative learning rate.

    The product accumulates into the weight.
    """

    which: int  # the position of the scaled operand, 0 or 1

    @property
    def reorders(self) -> int:
        """Bytes that the product copies between layouts at each launch."""
        return self.product.reorders

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches, which scale the operand and accumulate the product."""
        model, *operands, rate = ctx.inputs[:4]
        factor = pointer(ctx.inputs[4]) if len(ctx.inputs) > 4 else null()
        own, rest = self.split(ctx.workspace)
        given, operands[self.which] = operands[self.which], own
        scaled = call(
            "scale_by_rate",
            pointer(given), pointer(own), pointer(rate), factor, self.size, ctx.attrs["scale"],
        )  # fmt: skip
        inner = replace(ctx, inputs=tuple(operands), outputs=(model,), workspace=rest)
        return [scaled, *self.product.bind(inner)]


def build(p: Problem) -> MatmulSgd | None:
    """Build ``onednn_matmul_sgd``."""
    model, *operands = p.inputs[:3]
    if not compiler.available() or len(model.shape) != 2:
        return None
    attrs: dict[str, AttrValue] = {
        **{k: p.attrs[k] for k in ("transpose_a", "transpose_b")},
        "alpha": 1.0, "activation": "", "accumulate": True, "math": p.attrs.get("math", ""),
    }  # fmt: skip
    items = tuple(sorted(attrs.items()))
    product = matmul.build(Problem("onednn_matmul", tuple(operands), (model,), items))
    if product is None:
        return None
    which = min((0, 1), key=lambda k: operands[k].size)
    return MatmulSgd(product, operands[which].size, which)


KERNELS: tuple[KernelSpec, ...] = (kernel("onednn_matmul_sgd", build, accepts=is_float32),)
