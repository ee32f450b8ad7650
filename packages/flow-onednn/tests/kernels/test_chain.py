"""Chains of convolutions in bands of rows: the steps, and the bits of the results."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import pytest

from flow_core.base.dtypes import DType, bfloat16, float32
from flow_core.ir.graph import tensor_type
from flow_onednn import library, threads
from flow_onednn.kernels.convolution import chain
from flow_onednn.kernels.convolution.chain import CHAIN, MOVE, Stage
from flow_onednn.kernels.convolution.packed import PRODUCT, packed_size
from flow_onednn.recipes import BY_OP, Problem

pytestmark = pytest.mark.usefixtures("onednn")
Shape = tuple[int, ...]
HALF = pytest.mark.skipif(not library.has_fast_half(), reason="no fast products of bfloat16")


def conv(
    image: Shape, filters: int, size: int, stride: int = 1, groups: int = 1, rate: int = 1,
    residual: bool = False, high: float = 6.0,
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes of a convolution whose padding keeps the size, without a stride."""
    n, *space, c = image
    pad = size // 2 * rate
    result = (n, *(-(-s // stride) for s in space), filters)
    return {
        "kernel_size": (size, size), "strides": (stride, stride), "dilation_rate": (rate, rate),
        "padding_before": (pad, pad), "groups": groups, "weights_last": False, "math": "",
        "low": 0.0 if high < inf else -inf, "high": high, "image": image, "result": result,
        "filters": (filters, c // groups, size, size), "bias": True, "residual": residual,
        "bounded": False, "residual_bounded": False,
    }  # fmt: skip


def inverted(n: int, size: int, stride: int, kernel: int = 3, rate: int = 1) -> list[Any]:
    """Return the convolutions of an inverted residual block."""
    wide = conv((n, size, size, 16), 48, 1)
    deep = conv(wide["result"], 48, kernel, stride, 48, rate)
    return [wide, deep, conv(deep["result"], 16, 1, residual=stride == 1, high=inf)]


def deep(n: int, size: int) -> list[Any]:
    """Return two convolutions of 3 x 3, and one of 1 x 1 between them."""
    first = conv((n, size, size, 16), 32, 3)
    middle = conv(first["result"], 16, 1, residual=True)
    return [first, middle, conv(middle["result"], 32, 3, 2)]


CHAINS = {
    "stride 1": inverted(2, 14, 1),
    "stride 2": inverted(3, 15, 2),
    "kernel 5, stride 2": inverted(1, 13, 2, 5),
    "dilation": inverted(2, 12, 1, 3, 2),
    "two windows": deep(2, 14),
    "from a depthwise one": inverted(2, 14, 2)[1:],
}


def problems(convs: list[Any], dtype: DType) -> tuple[Problem, list[Problem]]:
    """Return the problems of a chain and of its convolutions."""
    bound = tensor_type((1,), float32)
    made, rest = [], []
    for k, given in enumerate(convs):
        attrs = {**given, "bounded": k > 0}
        size = packed_size(attrs, tensor_type(attrs["filters"], dtype))
        assert size is not None
        out = tensor_type(attrs["result"], dtype)
        more = [tensor_type((size,), dtype), tensor_type((2,), float32)]
        more += [tensor_type(attrs["result"][-1:], dtype), *([out] if attrs["residual"] else [])]
        inputs = (tensor_type(attrs["image"], dtype), *more, *([bound] if k else []))
        rest += more
        made.append(Problem(PRODUCT, inputs, (out, bound), tuple(sorted(attrs.items()))))
    attrs = ("convs", tuple(p.items for p in made)), ("op", PRODUCT)
    return Problem(CHAIN, (made[0].inputs[0], *rest), made[-1].outputs, attrs), made


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [float32, pytest.param(bfloat16, marks=HALF)])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_has_the_bits_of_its_convolutions(
    name: str, dtype: DType, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "CACHED", 1 << 12)
    whole, convs = problems(CHAINS[name], dtype)
    with threads.limited(count):
        made = BY_OP[CHAIN](whole)
        assert isinstance(made, chain.ConvChain)
        assert made.lanes == count
        assert made.bands.height < CHAINS[name][-1]["result"][1]
        assert chain.same_bits(whole, convs)


@pytest.mark.parametrize("dtype", [float32, pytest.param(bfloat16, marks=HALF)])
def test_limits_leave_most_numbers_of_the_trial(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, convs = problems(CHAINS["stride 1"], dtype)
    results, run = [], chain._run
    monkeypatch.setattr(chain, "_run", lambda p, x: results.append(run(p, x)) or results[-1])
    assert chain.same_bits(whole, convs)
    for (y, *_), conv in zip(results[1:], convs, strict=True):
        inside = (y > conv.attrs["low"]) & (y < conv.attrs["high"])
        assert inside.mean() > 0.25


def test_the_trial_notices_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, convs = problems(CHAINS["stride 1"], float32)
    first, *others = convs
    other = dict(first.items) | {"low": 0.5}
    changed = Problem(first.op, first.inputs, first.outputs, tuple(sorted(other.items())))
    assert chain.same_bits(whole, convs)
    assert not chain.same_bits(whole, [changed, *others])


def computed(made: chain.Bands, low: int, high: int) -> list[int]:
    """Run steps on row numbers in place of rows; return the rows of the result."""
    windows = [[-1] * window.most for window in made.windows]
    result: list[int] = []
    last = len(made.stages) - 1
    for stage, band, source, target, _, size in made.steps[low:high]:
        if stage == MOVE:
            row = made.stages[band].rows[1]
            first, to, count = source // row, target // row, size // row
            windows[band][to : to + count] = windows[band][first : first + count]
            continue
        _, rows, read, before = list(made.parts)[band]
        one = made.stages[stage]
        at = source // one.rows[0]
        image = windows[stage - 1][at : at + read] if stage else list(range(at, at + read))
        assert image == list(range(image[0], image[0] + read))
        start = image[0] - before
        first = (start + one.attrs["padding_before"][0]) // one.attrs["strides"][0]
        assert one.reads(first, first + rows)[0] == start
        found, to = list(range(first, first + rows)), target // one.rows[1]
        if stage == last:
            assert to == first
            result += found
        else:
            assert to + rows <= len(windows[stage])
            windows[stage][to : to + rows] = found
    return result


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("name", CHAINS)
def test_each_row_is_computed_once_from_the_rows_that_it_depends_on(
    name: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "CACHED", 1 << 12)
    stages = [Stage(attrs, float32, float32) for attrs in CHAINS[name]]
    for made, starts in chain.schedules(stages, parts):
        found = [row for ends in pairwise(starts) for row in computed(made, *ends)]
        assert found == list(range(stages[-1].heights[1]))
        assert sum(made.sizes) <= chain.CACHED or made.height == 1


def test_rows_of_padding_alone_are_not_computed_in_bands() -> None:
    first, middle, last = inverted(1, 12, 1)
    wide = {**middle, "padding_before": (3, 1), "result": (1, 15, 12, 48)}
    tall = {**last, "image": (1, 15, 12, 48), "result": (1, 15, 12, 16)}
    assert all(Stage(attrs, float32, float32).reads_rows for attrs in (first, middle, last))
    assert not Stage(wide, float32, float32).reads_rows
    assert BY_OP[CHAIN](problems([first, wide, tall], float32)[0]) is None


def test_bands_in_one_part_compute_no_row_twice() -> None:
    stages = [Stage(attrs, float32, float32) for attrs in CHAINS["two windows"]]
    for made, _ in chain.schedules(stages, 1):
        for k, stage in enumerate(stages):
            rows = [list(made.parts)[s[1]][1] for s in made.steps if s[0] == k]
            assert sum(rows) == stage.heights[1]
