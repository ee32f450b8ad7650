"""The boxing op, which builds parts of a tensor on devices from parts that other devices hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape
from flow_core.comm.exchange import BOXING, COMBINE, Block, neutral
from flow_core.ir.graph import AttrValue, tensor_type
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.plan import COLLECTIVES
from flow_core.plugins.specs import REQUIRED, InferContext, Sample


def window(start: Shape, size: Shape) -> tuple[slice, ...]:
    """Return the slices that select a box.

    >>> window((1, 0), (2, 3))
    (slice(1, 3, None), slice(0, 3, None))
    """
    return tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))


def _reduced(parts: tuple[Array, ...], members: int, combine: Any) -> Iterator[Array]:
    p = len(parts) // members
    for member in range(members):
        total = parts[member * p]
        for part in parts[member * p + 1 : (member + 1) * p]:
            total = combine(total, part)
        yield from [np.array(total) for _ in range(p)]


def boxing_attrs(
    collective: str,
    dtype: str,
    shapes: tuple[Shape, ...],
    *,
    combine: str = "sum",
    blocks: tuple[tuple[object, ...], ...] = (),
    fills: tuple[tuple[int, str], ...] = (),
    members: tuple[str, ...] = (),
) -> dict[str, AttrValue]:
    """Return the attributes of a ``boxing`` op; the op's documentation describes them."""
    return {
        "collective": collective, "dtype": dtype, "shapes": shapes, "combine": combine,
        "blocks": blocks, "fills": fills, "members": members,
    }  # fmt: skip


class Boxing(OpDef):
    schema = f"{BOXING}(part*) -> out*"
    attrs = {
        "collective": REQUIRED, "shapes": REQUIRED, "dtype": REQUIRED, "blocks": (),
        "fills": (), "combine": "sum", "members": (), "whole": (),
    }  # fmt: skip
    internal = True
    doc = """Copy and combine boxes of its inputs; run by a comm, not by a kernel.

        ``collective`` is a name of `flow_core.plan.COLLECTIVES`, ``blocks`` has the fields
        of a `flow_core.comm.exchange.Block` per box, ``shapes`` the shape of each output, ``fills``
        (output, operation) for outputs that boxes do not cover, ``members`` the names of the
        ops in a bucket.  An ``all_reduce`` has no blocks: input and output k belong to device k,
        for each member in turn.  In a graph that has ops of some devices only, an exchange has no
        blocks and fills; ``whole`` describes it, as `flow_core.comm.described` defines.
        """

    def infer(self, ctx: InferContext) -> Types:
        for key, known in (("combine", COMBINE), ("collective", COLLECTIVES)):
            ctx.check(ctx.attrs[key] in known, ctx.attrs[key], ", ".join(known))
        dtype = as_dtype(ctx.attrs["dtype"])
        return tuple(tensor_type(tuple(shape), dtype) for shape in ctx.attrs["shapes"])

    def reference(self, *parts: Array, **attrs: AttrValue) -> Any:
        dtype = parts[0].dtype if parts else as_dtype(attrs["dtype"]).numpy
        combine = COMBINE[attrs["combine"]]
        if attrs["collective"] == "all_reduce":
            return tuple(_reduced(parts, len(attrs["members"]) or 1, combine))
        outs = [np.zeros(shape, dtype) for shape in attrs["shapes"]]
        for index, operation in attrs["fills"]:
            outs[index][...] = neutral(operation, as_dtype(dtype))
        for block in (Block(*row) for row in attrs["blocks"]):
            new = parts[block.source][window(block.start, block.size)]
            out, region = outs[block.target], window(block.at, block.size)
            out[region] = new if block.first else combine(out[region], new)
        return tuple(outs)

    def samples(self, rng: Rng) -> Samples:
        a, b = (rng.integers(-9, 9, size).astype(np.int32) for size in ((2, 3), (4, 3)))
        rows: tuple[Any, ...] = (
            (0, (0, 0), 0, (0, 0), (2, 3), True),
            (1, (1, 0), 0, (2, 0), (3, 3), True),
            (1, (0, 0), 1, (0, 0), (4, 3), True),
        )
        attrs = boxing_attrs("all_gather", "int32", ((5, 3), (4, 3)), blocks=rows)
        yield Sample((a, b), attrs, gradient=False)
        rows = ((0, (0, 1), 0, (1, 0), (2, 2), True), (1, (0, 0), 0, (1, 0), (2, 2), False))
        attrs = boxing_attrs("reduce", "int32", ((4, 2),), blocks=rows, fills=((0, "sum"),))
        yield Sample((a, b), attrs, gradient=False)
        attrs = boxing_attrs("all_reduce", "int32", ((4, 3), (4, 3)), combine="max")
        yield Sample((b, b[::-1]), attrs, gradient=False)
        shapes = ((2, 3), (2, 3), (4, 3), (4, 3))
        attrs = boxing_attrs("all_reduce", "int32", shapes, members=("first", "second"))
        yield Sample((a, -a * 2, b, b * 3), attrs, gradient=False, note="a bucket")
        attrs = boxing_attrs("all_reduce", "int32", ((), ()))
        yield Sample((a[0, 0], b[0, 0]), attrs, gradient=False, note="scalars")


OPS = specs(Boxing)
