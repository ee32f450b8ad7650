"""Chains of packed convolutions, computed in bands of rows that stay in a core's cache.

A convolution that widens an image, and the one that reads the result, otherwise write and read
images that are larger than the caches.  Here, each thread computes the rows of some images, or of
parts of them, from the first convolution to the last one: `Bands` lists the steps.  The rows that
two bands share are moved, not computed again.  Each pixel is computed by the implementation that
`onednn_packed_conv` uses, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from math import gcd, prod
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import (
    Attrs,
    AttrValue,
    BindContext,
    KernelQuery,
    KernelSpec,
    tensor_type,
)
from flow_core.base.alignment import aligned
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, float32
from flow_onednn import threads
from flow_onednn.kernels.concurrent import supported
from flow_onednn.kernels.convolution.packed import PackedConv
from flow_onednn.kernels.loops import null, pointer
from flow_onednn.kernels.nan_relu import bounded
from flow_onednn.library import library
from flow_onednn.native import compiler
from flow_onednn.native.calls import call
from flow_onednn.primitives import (
    BoundPrimitive,
    Primitive,
    address,
    bind_primitive,
    raise_failure,
    void_pointer,
)
from flow_onednn.recipes import BY_OP, Problem, Recipe, kernel, product_types

CHAIN = "onednn_conv_chain"
CACHED = 384 << 10
"""Bytes of the images between the convolutions of a band: with weights, they fit in 1 MB of L2."""
MOST_CONVS = 8
"""Most convolutions of a chain; equals `MOST_STAGES` in `native/bands.c`."""
MOVE = -1
Row = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Stage:
    """A convolution of a chain, along the rows of images.

    Attributes:
        attrs: the attributes of the op.
        dtype: the element type of the images.
    """

    attrs: dict[str, AttrValue]
    dtype: DType

    @property
    def heights(self) -> tuple[int, int]:
        """The number of rows of the image, and of the result."""
        return self.attrs["image"][1], self.attrs["result"][1]

    def row(self, name: str) -> int:
        """Return the bytes of a row of the ``image`` or of the ``result``."""
        return int(prod(self.attrs[name][2:])) * self.dtype.itemsize

    def reads(self, low: int, high: int) -> tuple[int, int]:
        """Return the rows that rows of the result depend on; outside of the image is padding."""
        stride, before = self.attrs["strides"][0], self.attrs["padding_before"][0]
        return low * stride - before, (high - 1) * stride - before + self._extent

    @property
    def _extent(self) -> int:
        """The number of rows from the first to the last one that a row of the result depends on."""
        return int((self.attrs["kernel_size"][0] - 1) * self.attrs["dilation_rate"][0] + 1)

    @property
    def reads_rows(self) -> bool:
        """Whether each row of the result depends on rows of the image, not on padding alone."""
        read, written = self.heights
        low, high = self.reads(0, written)
        return -self._extent < low and high - self._extent < read

    def part(self, rows: int, read: int, before: int) -> dict[str, AttrValue]:
        """Return the attributes of the convolution of some rows of one image."""
        (_, _, *x), (_, _, *y) = self.attrs["image"], self.attrs["result"]
        pads = (before, self.attrs["padding_before"][1])
        return {**self.attrs, "image": (1, read, *x), "result": (1, rows, *y),
                "padding_before": pads}  # fmt: skip


Part = tuple[int, int, int, int]
"""A stage, its rows of the result, the rows that it reads, and rows of padding before them."""


@dataclass(slots=True)
class Window:
    """Consecutive rows of an image in memory: from `low` to before `high`, of at most `most`."""

    low: int = 0
    high: int = 0
    most: int = 0


@dataclass(slots=True)
class Bands:
    """The steps of a chain, in bands of the result's rows.

    Attributes:
        stages: the convolutions.
        height: the number of the result's rows of a band.
        parts: the primitives that steps need.
        steps: rows of `Step` in `native/bands.c`, whose offsets in the lane are those in a window.
        windows: the rows between convolutions.
    """

    stages: Sequence[Stage]
    height: int
    parts: dict[Part, int] = field(default_factory=dict)
    steps: list[Row] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    def add(self, low: int, high: int) -> None:
        """Add the steps of rows of the result."""
        most = [w.most for w in self.windows] or [0] * (len(self.stages) - 1)
        self.windows = [Window(most=m) for m in most]
        for first in range(low, high, self.height):
            self._run(len(self.stages) - 1, first, min(high, first + self.height), first)

    def _run(self, k: int, low: int, high: int, to: int) -> None:
        """Add the steps that compute rows of a stage's result, and write them to row ``to``."""
        stage = self.stages[k]
        first, last = stage.reads(low, high)
        start, end = max(first, 0), min(last, stage.heights[0])
        row = start
        if k:
            self._keep(k - 1, start, end)
            row -= self.windows[k - 1].low
        part = k, high - low, end - start, start - first
        band = self.parts.setdefault(part, len(self.parts))
        wide = stage.row("result")
        size = (high - low) * wide // stage.dtype.itemsize
        self.steps.append((k, band, row * stage.row("image"), to * wide, low * wide, size))

    def _keep(self, k: int, low: int, high: int) -> None:
        """Make a window contain rows of a stage's result."""
        window, row = self.windows[k], self.stages[k].row("result")
        if window.low < low:
            kept = max(0, window.high - low)
            if kept:
                self.steps.append((MOVE, k, (low - window.low) * row, 0, 0, kept * row))
            window.low, window.high = low, low + kept
        window.most = max(window.most, high - window.low)
        if window.high < high:
            done, window.high = window.high, high
            self._run(k, done, high, done - window.low)

    @property
    def sizes(self) -> list[int]:
        """The bytes of the windows."""
        pairs = zip(self.windows, self.stages, strict=False)
        return [aligned(window.most * stage.row("result")) for window, stage in pairs]


def schedules(stages: Sequence[Stage], parts: int) -> Iterator[tuple[Bands, tuple[int, ...]]]:
    """Yield the steps of all parts of an image, and the first step of each part, for some heights.

    Bands are at most as high as the cache holds.  Heights divide that of the image, so that few
    primitives are needed; the highest ones come first.
    """
    total = stages[-1].heights[1]
    ends = [total * k // parts for k in range(parts + 1)]
    most = -(-total // parts)
    for height in (h for h in range(most, 0, -1) if h == most or total % h == 0):
        made, starts = Bands(stages, height), [0]
        for low, high in pairwise(ends):
            made.add(low, high)
            starts.append(len(made.steps))
        if sum(made.sizes) <= CACHED or height == 1:
            yield made, tuple(starts)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a stage, with the bounds of its image and residual that other ops compute."""

    packed: Array
    norms: Array
    bias: Array | None
    residual: Array | None
    bound: Array | None
    residual_bound: Array | None


@dataclass(frozen=True, slots=True)
class ConvChain:
    """A chain, and its primitives.

    Attributes:
        stages: the convolutions.
        bands: the steps.
        starts: the first step of each part of an image, and the number of steps.
        lanes: the number of threads.
        primitives: for each part of the bands, one that limits its result, and one that does not.
    """

    stages: tuple[Stage, ...]
    bands: Bands
    starts: tuple[int, ...]
    lanes: int
    primitives: tuple[tuple[Recipe, Recipe], ...]
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the windows and scratchpads of all lanes."""
        return self.lanes * self._lane

    @property
    def _lane(self) -> int:
        scratch = max(made.primitive.scratchpad for two in self.primitives for made in two)
        return sum(self.bands.sizes) + aligned(scratch)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launch."""
        make, one = compiler.ffi(compiler.CDEF), library()
        given, work = list(self._inputs(ctx)), address(ctx.workspace)
        table, kept = [], []
        with threads.single_threaded():
            for lane in range(self.lanes):
                scratch = work + lane * self._lane + sum(self.bands.sizes)
                for (stage, *_), two in zip(self.bands.parts, self.primitives, strict=True):
                    for made in two:
                        row, ready = _bound(made, given[stage], scratch)
                        table.append(row)
                        kept.append(ready)
        x, y = ctx.inputs[0], ctx.outputs[0]
        ends = (make.cast("char *", at) for at in (address(x), address(y), work))
        memory = make.new("Memory *", (*ends, x[0].nbytes, y[0].nbytes, self._lane))
        functions = one.lib.dnnl_primitive_execute, one.lib.dnnl_memory_set_data_handle
        bounds = [*np.zeros((len(given) - 1, 1), np.float32), ctx.outputs[1]]
        stages, failed = list(self._stages(ctx, given, bounds)), self.primitives[0][0].primitive
        return [
            call(
                "run_bands", *map(void_pointer, functions), void_pointer(one.stream),
                make.new("Stage[]", stages), len(stages),
                make.new("Band[]", table), len(self.primitives),
                make.new("Step[]", self._steps()), make.new("long[]", self.starts),
                len(self.starts) - 1, memory, len(x), self.lanes,
                fail=partial(raise_failure, failed, (kept, given, bounds, stages)),
            )
        ]  # fmt: skip

    def _inputs(self, ctx: BindContext) -> Iterator[Inputs]:
        rest = iter(ctx.inputs[1:])
        for k, stage in enumerate(self.stages):
            attrs = stage.attrs
            packed, norms = next(rest), next(rest)
            first = attrs["bounded"] and k == 0
            has = attrs["bias"], attrs["residual"], first, attrs["residual_bounded"]
            yield Inputs(packed, norms, *(next(rest) if one else None for one in has))

    def _stages(
        self, ctx: BindContext, given: Sequence[Inputs], bounds: Sequence[Array]
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of `Stage`; each stage has its result's bound in an array."""
        limited = [_conv(stage, stage.attrs).limited for stage in self.stages]
        x, known = ctx.inputs[0] if any(limited) else None, given[0].bound
        for stage, own, limit, bound in zip(self.stages, given, limited, bounds, strict=True):
            arrays, knowns = [x], [known]
            if own.residual is not None:
                arrays.append(own.residual if limit else None)
                knowns.append(own.residual_bound)
            low, high = stage.attrs["low"], stage.attrs["high"]
            yield {
                "ends": bounded(arrays, knowns), "count": len(arrays), "norms": pointer(own.norms),
                "most": max(abs(low), abs(high)), "bound": pointer(bound), "low": low, "high": high,
                "residual": null() if own.residual is None else pointer(own.residual, "char *"),
                "image": stage.heights[1] * stage.row("result"), "limited": limit,
                "half": stage.dtype is not float32,
            }  # fmt: skip
            x, known = None, bound

    def _steps(self) -> list[Row]:
        """Return the steps with offsets in the memory of a lane."""
        base = [0, *accumulate(self.bands.sizes)]
        last, rows = len(self.stages) - 1, []
        for stage, band, source, target, added, size in self.bands.steps:
            moved = stage == MOVE
            source += base[band] if moved else base[stage - 1] if stage else 0
            target += base[band] if moved else base[stage] if stage < last else 0
            rows.append((stage, band, source, target, added, size))
        return rows


def _bound(made: Recipe, given: Inputs, scratch: int) -> tuple[dict[str, Any], BoundPrimitive]:
    """Bind a primitive to all arguments but images; return the `Band`, and what it needs."""
    fixed = {"weights": given.packed, "bias": given.bias}
    arrays = {role: address(array) for role, array in fixed.items() if array is not None}
    tensors = {o.role: (o.md, arrays.get(o.role, 0)) for o in made.operands}
    ready = bind_primitive(made.primitive, tensors, scratch)
    memories = dict(zip(tensors, (slot.memory for slot in ready.arguments), strict=False))
    row = {"primitive": void_pointer(ready.primitive), "arguments": void_pointer(ready.arguments),
           "count": ready.count}  # fmt: skip
    for name, role in (("from", "src"), ("to", "dst"), ("added", "operand 0")):
        row[name] = void_pointer(memories[role]) if role in memories else null()
    return row, ready


def _build(p: Problem) -> ConvChain | None:
    if not supported() or not compiler.available():
        return None
    dtype = p.inputs[0].dtype
    stages = tuple(Stage(dict(items), dtype) for items in p.attrs["convs"])
    if not all(stage.reads_rows for stage in stages):
        return None
    images, lanes = p.inputs[0].shape[0], threads.count()
    parts = min(lanes // gcd(images, lanes), stages[-1].heights[1])
    layouts = [_whole(stage) for stage in stages]
    for made, starts in schedules(stages, parts):
        with threads.single_threaded():
            found = [_pair(stages[k], rows, layouts[k]) for k, *rows in made.parts]
        primitives = tuple(two for two in found if two is not None)
        if len(primitives) == len(found):
            return ConvChain(stages, made, starts, lanes, primitives)
    return None


def _conv(stage: Stage, attrs: dict[str, AttrValue]) -> PackedConv:
    return PackedConv.of(attrs, tensor_type(attrs["filters"], stage.dtype))


def _whole(stage: Stage) -> Primitive | None:
    """Return the primitive of a whole convolution, which selects the layout of the weights."""
    conv = _conv(stage, stage.attrs)
    return conv.primitive(conv.limited)


def _pair(
    stage: Stage, rows: Sequence[int], whole: Primitive | None
) -> tuple[Recipe, Recipe] | None:
    """Return the primitives of some rows with and without a limit, if they read the same layout."""
    conv, made = _conv(stage, stage.part(*rows)), []
    for limited in (conv.limited, False):
        layout = None if whole is None else whole.md("weights")
        one = conv.primitive_of_pool(limited, layout, warns=False)
        if whole is None or one is None or one.implementation != whole.implementation:
            return None
        made.append(conv.with_operands(one))
    return made[0], made[1]


def _accepts(query: KernelQuery) -> bool:
    return query.inputs[0].dtype.name in product_types()


KERNELS: tuple[KernelSpec, ...] = (kernel(CHAIN, _build, accepts=_accepts),)


# --- the trial

PERIOD = 16381
"""Numbers of a trial before they repeat; a prime, so that rows differ."""


def same_bits(chain: Problem, convs: Sequence[Problem]) -> bool:
    """Return whether a chain has the bits of its convolutions in a trial.

    Args:
        chain: the chain.
        convs: its convolutions.
    """
    drawn = np.random.default_rng(0).standard_normal(PERIOD, np.float32)
    x, *rest = (np.resize(drawn, t.shape).astype(t.dtype.numpy) for t in chain.inputs)
    (found, _), others, image, bound = _run(chain, [x, *rest]), iter(rest), x, x
    for k, conv in enumerate(convs):
        own = 3 + conv.attrs["bias"] + conv.attrs["residual"] if k else 0
        more = [bound if own == i else next(others) for i in range(1, len(conv.inputs))]
        image, bound = _run(conv, [image, *more])
    return np.array_equal(image.view(np.uint8), found.view(np.uint8))


def _run(p: Problem, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Compute the outputs of an op."""
    made = BY_OP[p.op](p)
    if made is None:
        raise LookupError(f"no implementation of {p.op}")
    outputs = tuple(np.empty(t.shape, t.dtype.numpy) for t in p.outputs)
    query = KernelQuery(p.op, Attrs(p.attrs), p.inputs, p.outputs)
    workspace = np.empty(made.workspace, np.uint8)
    for launch in made.bind(BindContext(query, tuple(inputs), outputs, workspace)):
        launch()
    return outputs
