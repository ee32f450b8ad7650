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
from flow_core.base.dtypes import DType, as_dtype, float32
from flow_onednn import threads
from flow_onednn.kernels.concurrent import supported
from flow_onednn.kernels.convolution.int8 import LEVELS, Int8Conv
from flow_onednn.kernels.convolution.packed import PackedConv
from flow_onednn.kernels.loops import null, pointer
from flow_onednn.kernels.nan_relu import bounded
from flow_onednn.library import has_int8, library
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
CACHED = 896 << 10
"""Most bytes of the images between the convolutions of a band: those of an L2 cache of 1 MB, less
the weights of small convolutions."""
MOST_CONVS = 8
"""Most convolutions of a chain; equals `MOST_STAGES` in `native/bands.c`."""
MOVE = -1
Row = tuple[int, int, int, int, int, int]
Part = tuple[int, int, int, int]
"""A stage, its rows of the result, the rows that it reads, and rows of padding before them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A convolution of a chain, along the rows of images."""

    attrs: dict[str, AttrValue]
    read: DType  # the element types of the image and of the result
    written: DType

    @property
    def heights(self) -> tuple[int, int]:
        """The number of rows of the image, and of the result."""
        return self.attrs["image"][1], self.attrs["result"][1]

    @property
    def rows(self) -> tuple[int, int]:
        """The bytes of a row of the image, and of the result."""
        ends = ("image", self.read), ("result", self.written)
        x, y = (prod(self.attrs[name][2:]) * type_.itemsize for name, type_ in ends)
        return x, y

    @property
    def is_int8(self) -> bool:
        """Whether the convolution is an `onednn_int8_conv`."""
        return "image_zero" in self.attrs

    @property
    def residual(self) -> int | None:
        """The position of the residual among the op's inputs."""
        if self.is_int8:
            return 6 if self.attrs["residual_type"] else None
        return 3 + self.attrs["bias"] if self.attrs["residual"] else None

    @property
    def bound(self) -> int | None:
        """The position of the bound of the image among the op's inputs."""
        if self.is_int8 or not self.attrs["bounded"]:
            return None
        return int(3 + self.attrs["bias"] + self.attrs["residual"])

    @property
    def inputs(self) -> int:
        """The number of the op's inputs."""
        if self.is_int8:
            return 6 + bool(self.attrs["residual_type"])
        names = "bias", "residual", "bounded", "residual_bounded"
        return 3 + [bool(self.attrs[name]) for name in names].count(True)

    @property
    def limited(self) -> bool:
        """Whether numbers that are not finite need a primitive without limits, and a loop."""
        return not self.is_int8 and self._conv(self.attrs).limited

    def _conv(self, attrs: dict[str, AttrValue]) -> PackedConv:
        return PackedConv.of(attrs, tensor_type(attrs["filters"], self.read))

    def whole(self) -> Primitive | None:
        """Return the primitive of the op, which selects the layout of the weights."""
        if self.is_int8:
            return Int8Conv.of(self.attrs).primitive()
        conv = self._conv(self.attrs)
        return conv.primitive(conv.limited)

    def forms(self, part: Part, whole: Primitive) -> tuple[Recipe, ...] | None:
        """Return the primitive of a part, and one without limits of the result if there are any.

        Return None unless they are those of the whole, with its layout of the weights.
        """
        attrs, packed, made = self._part(*part[1:]), whole.md("weights"), []
        conv = Int8Conv.of(attrs) if self.is_int8 else self._conv(attrs)
        for limited in (True, False) if self.limited else (False,):
            if isinstance(conv, PackedConv):
                one = conv.primitive_of_pool(limited, packed, warns=False)
            else:
                one = conv.primitive_of_pool(packed, warns=False)
            if one is None or one.implementation != whole.implementation:
                return None
            made.append(conv.with_operands(one))
        return tuple(made)

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

    def _part(self, rows: int, read: int, before: int) -> dict[str, AttrValue]:
        """Return the attributes of the convolution of some rows of one image."""
        (_, _, *x), (_, _, *y) = self.attrs["image"], self.attrs["result"]
        pads = (before, self.attrs["padding_before"][1])
        return {**self.attrs, "image": (1, read, *x), "result": (1, rows, *y),
                "padding_before": pads}  # fmt: skip


@dataclass(slots=True)
class Window:
    """Consecutive rows of an image in memory: from `low` to before `high`, of at most `most`."""

    low: int = 0
    high: int = 0
    most: int = 0


@dataclass(slots=True)
class Bands:
    """The steps of a chain, in bands of the result's rows."""

    stages: Sequence[Stage]
    height: int  # the number of the result's rows of a band
    parts: dict[Part, int] = field(default_factory=dict)  # the primitives that steps need
    # Rows of `Step` in `native/bands.c`, whose offsets in the lane are those in a window.
    steps: list[Row] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)  # the rows between convolutions

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
        narrow, wide = stage.rows
        size = (high - low) * wide // stage.written.itemsize
        self.steps.append((k, band, row * narrow, to * wide, low * self.added(k), size))

    def added(self, k: int) -> int:
        """Return the bytes of a row of a stage's residual."""
        stage = self.stages[k]
        kind = as_dtype(stage.attrs["residual_type"]) if stage.is_int8 and stage.residual else None
        return stage.rows[1] // stage.written.itemsize * (kind or stage.written).itemsize

    def _keep(self, k: int, low: int, high: int) -> None:
        """Make a window contain rows of a stage's result."""
        window, row = self.windows[k], self.stages[k].rows[1]
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
        return [aligned(window.most * stage.rows[1]) for window, stage in pairs]


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
class ConvChain:
    """A chain, and its primitives."""

    stages: tuple[Stage, ...]
    bands: Bands
    starts: tuple[int, ...]  # the first step of each part of an image, and the number of steps
    lanes: int  # the number of threads
    primitives: tuple[tuple[Recipe, ...], ...]  # for each part of the bands, those of `Stage.forms`
    reorders: int = 0
    allocates: bool = False

    @property
    def workspace(self) -> int:
        """Bytes of the windows and scratchpads of all lanes."""
        return self.lanes * self._lane

    @property
    def _lane(self) -> int:
        scratch = max(made.primitive.scratchpad for forms in self.primitives for made in forms)
        return sum(self.bands.sizes) + aligned(scratch)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launch."""
        make, one = compiler.ffi(compiler.CDEF), library()
        work, kept, table = address(ctx.workspace), [], []
        bounds = [*np.zeros((len(self.stages), 1), np.float32)]
        if len(ctx.outputs) > 1:
            bounds[-1] = ctx.outputs[1]
        given = list(op_inputs(self.stages, ctx.inputs, bounds))
        with threads.single_threaded():
            for lane in range(self.lanes):
                scratch = work + lane * self._lane + sum(self.bands.sizes)
                for (k, *_), forms in zip(self.bands.parts, self.primitives, strict=True):
                    residual = self.stages[k].residual
                    rows = [_bound(made, given[k], residual, scratch) for made in forms]
                    table += [rows[0][0], rows[-1][0]]
                    kept += rows
        x, y = ctx.inputs[0], ctx.outputs[0]
        ends = (make.cast("char *", at) for at in (address(x), address(y), work))
        memory = make.new("Memory *", (*ends, x[0].nbytes, y[0].nbytes, self._lane))
        functions = one.lib.dnnl_primitive_execute, one.lib.dnnl_memory_set_data_handle
        stages = [self._stage(k, row, bounds[k]) for k, row in enumerate(given)]
        failed = partial(raise_failure, self.primitives[0][0].primitive)
        return [
            call(
                "run_bands", *map(void_pointer, functions), void_pointer(one.stream),
                make.new("Stage[]", stages), len(stages),
                make.new("Band[]", table), len(self.primitives),
                make.new("Step[]", self._steps()), make.new("long[]", self.starts),
                len(self.starts) - 1, memory, len(x), self.lanes,
                fail=partial(failed, (kept, given, bounds, stages)),
            )
        ]  # fmt: skip

    def _stage(self, k: int, given: Sequence[Array], bound: Array) -> dict[str, Any]:
        """Return the row of `Stage` of a stage, given the inputs of the op."""
        stage = self.stages[k]
        residual = None if stage.residual is None else given[stage.residual]
        row = {
            "bound": pointer(bound), "limited": stage.limited,
            "residual": null() if residual is None else pointer(residual, "char *"),
            "image": stage.heights[1] * self.bands.added(k),
        }  # fmt: skip
        if stage.is_int8:
            return row
        measured = k == 0 and any(one.limited for one in self.stages)
        ends = [(given[0] if measured else None, stage.bound and given[stage.bound])]
        if residual is not None:
            known = given[-1] if stage.attrs["residual_bounded"] else None
            ends.append((residual if stage.limited else None, known))
        low, high = stage.attrs["low"], stage.attrs["high"]
        return row | {
            "ends": bounded(*zip(*ends, strict=True)), "count": len(ends), "low": low, "high": high,
            "most": max(abs(low), abs(high)), "norms": pointer(given[2]),
            "half": stage.written is not float32,
        }  # fmt: skip

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


def op_inputs(
    stages: Sequence[Stage], inputs: Sequence[Array], bounds: Sequence[Array]
) -> Iterator[list[Array]]:
    """Yield the inputs of the op of each stage; images between stages are empty."""
    rest = iter(inputs[1:])
    for k, stage in enumerate(stages):
        given = [np.empty(0) if k else inputs[0]]
        for place in range(1, stage.inputs):
            given.append(bounds[k - 1] if k and place == stage.bound else next(rest))
        yield given


def _bound(
    made: Recipe, given: Sequence[Array], residual: int | None, scratch: int
) -> tuple[dict[str, Any], BoundPrimitive]:
    """Bind a primitive to all arguments but images; return the `Band`, and what it needs."""
    tensors = {}
    for o in made.operands:
        moves = o.result or o.index in (0, residual)
        tensors[o.role] = (o.md, 0 if moves else address(given[o.index]) + o.offset)
    ready = bind_primitive(made.primitive, tensors, scratch)
    memories = dict(zip(tensors, (slot.memory for slot in ready.arguments), strict=False))
    row = {"primitive": void_pointer(ready.primitive), "arguments": void_pointer(ready.arguments),
           "count": ready.count}  # fmt: skip
    for name, role in (("from", "src"), ("to", "dst"), ("added", "operand 0")):
        row[name] = void_pointer(memories[role]) if role in memories else null()
    return row, ready


def stages_of(p: Problem) -> tuple[Stage, ...]:
    """Return the stages of a chain."""
    read, made = p.inputs[0].dtype, []
    for items in p.attrs["convs"]:
        attrs = dict(items)
        written = as_dtype(attrs["result_type"]) if "result_type" in attrs else read
        made.append(Stage(attrs, read, written))
        read = written
    return tuple(made)


def _build(p: Problem) -> ConvChain | None:
    stages, images, lanes = stages_of(p), p.inputs[0].shape[0], threads.count()
    whole = [one for stage in stages if (one := stage.whole()) is not None]
    fits = len(whole) == len(stages) and all(stage.reads_rows for stage in stages)
    if not fits or not supported():
        return None
    parts = min(lanes // gcd(images, lanes), stages[-1].heights[1])
    for made, starts in schedules(stages, parts):
        with threads.single_threaded():
            found = [stages[part[0]].forms(part, whole[part[0]]) for part in made.parts]
        primitives = tuple(forms for forms in found if forms is not None)
        if len(primitives) == len(found):
            return ConvChain(stages, made, starts, lanes, primitives)
    return None


def _accepts(query: KernelQuery) -> bool:
    return query.inputs[0].dtype.name in (*product_types(), *(LEVELS if has_int8() else ()))


KERNELS: tuple[KernelSpec, ...] = (kernel(CHAIN, _build, accepts=_accepts),)


# --- the trial

PERIOD = 16381
"""Numbers of a trial before they repeat; a prime, so that rows differ."""
DEVIATIONS = {True: 0.25, False: 9.0}
"""Standard deviation of numbers and of levels, of which limits of results leave enough."""


def same_bits(chain: Problem, convs: Sequence[Problem]) -> bool:
    """Return whether a chain has the bits of its convolutions in a trial."""
    drawn = np.random.default_rng(0).standard_normal(PERIOD, np.float32)
    given = [
        np.resize(DEVIATIONS[t.dtype.is_floating] * drawn, t.shape).astype(t.dtype.numpy)
        for t in chain.inputs
    ]
    found = _run(chain, given)[0]
    bounds = [np.empty(1, np.float32) for _ in convs]
    image = given[0]
    for conv, bound, inputs in zip(
        convs, bounds, op_inputs(stages_of(chain), given, bounds), strict=True
    ):
        image, *norm = _run(conv, [image, *inputs[1:]])
        bound[...] = norm[0] if norm else 0
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
