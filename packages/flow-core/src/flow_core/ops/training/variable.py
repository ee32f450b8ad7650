"""Variables: memory of the session that ops read, or overwrite if they list it in ``mutates``."""

from __future__ import annotations

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.ir.initializers import attr_problem
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import split_all_axes
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import P, S, Sbp, Signature, Signatures


class Variable(OpDef):
    """A variable of the session; jobs share it by the op's name."""

    schema = "variable() -> out"
    attrs = {
        "shape": REQUIRED, "dtype": "float32", "initializer": REQUIRED, "trainable": True,
        "regularizer": None, "seed": None,
    }  # fmt: skip
    sbp = staticmethod(split_all_axes)

    def infer(self, ctx: InferContext) -> Types:
        shape = tuple(ctx.attrs["shape"])
        ctx.check(all(n >= 0 for n in shape), f"shape {shape}", "sizes of at least 0")
        problem = attr_problem(ctx.attrs["initializer"])
        ctx.check(
            problem is None,
            f"initializer {ctx.attrs['initializer']!r}: {problem}",
            "a result of flow.*_initializer",
        )
        regularizer = ctx.attrs["regularizer"]
        ctx.check(
            regularizer is None or (len(regularizer) == 3 and regularizer[0] == "l1_l2"),
            f"regularizer {regularizer!r}",
            "None or a result of flow.regularizers.*",
        )
        return (tensor_type(shape, as_dtype(ctx.attrs["dtype"])),)


class Assign(OpDef):
    """Overwrite a variable."""

    schema = "assign(ref, value)"
    mutates = (0,)
    effect = True

    def infer(self, ctx: InferContext) -> Types:
        ref, value = ctx.inputs
        ctx.check(ref == value, f"a value of type {value} for {ref}", str(ref))
        return ()

    def sbp(self, ctx: SbpContext) -> Signatures:
        kinds: tuple[Sbp, ...] = (*map(S, range(len(ctx.inputs[0].shape))), P)
        return tuple(Signature((kind, kind), ()) for kind in kinds)

    def reference(self, ref: Array, value: Array) -> Array:
        return value.copy()

    def samples(self, rng: Rng) -> Samples:
        for shape in ((7,), (3, 5), (), (0, 2)):
            yield Sample((rng.uniform(-3, 3, shape), rng.uniform(-3, 3, shape)), gradient=False)
        yield Sample((rng.integers(-9, 9, (4,)), rng.integers(-9, 9, (4,))), gradient=False)


OPS = specs(Variable, Assign)
