"""Random crops; seed, step and sample determine a crop, whatever the number of devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.specs import BindContext
from flow_core.base.philox import Uniform

Box = tuple[int, int, int, int]
"""The top, left, height and width of a crop."""


@dataclass(frozen=True, slots=True)
class CropLimits:
    """The limits of random crops."""

    area: tuple[float, float] = (0.08, 1.0)  # minimum and maximum fraction of the image's area
    ratio: tuple[float, float] = (0.75, 4 / 3)  # minimum and maximum ratio of width to height
    attempts: int = 10  # number of random draws before the largest valid crop is used

    @property
    def draws(self) -> int:
        """Number of random numbers per crop."""
        return 2 * self.attempts + 2


def crop_box(size: tuple[int, int], limits: CropLimits, draws: Sequence[float]) -> Box:
    """Return the crop that random numbers in [0, 1) determine.

    The area and the logarithm of the ratio are uniform; a crop that does not fit is drawn again.

    >>> crop_box((100, 200), CropLimits((0.5, 0.5), (1.0, 1.0)), [0.0] * 22)
    (0, 0, 100, 100)
    """
    height, width = size
    h, w = _size(height, width, limits, draws)
    top = min(int(draws[-2] * (height - h + 1)), height - h)
    left = min(int(draws[-1] * (width - w + 1)), width - w)
    return top, left, h, w


def _size(height: int, width: int, limits: CropLimits, draws: Sequence[float]) -> tuple[int, int]:
    low, high = limits.area
    narrow, wide = limits.ratio
    area, logs = height * width, (math.log(narrow), math.log(wide))
    for i in range(limits.attempts):
        part = area * (low + (high - low) * draws[2 * i])
        ratio = math.exp(logs[0] + (logs[1] - logs[0]) * draws[2 * i + 1])
        w, h = max(1, round(math.sqrt(part * ratio))), max(1, round(math.sqrt(part / ratio)))
        if w <= width and h <= height and narrow <= w / h <= wide:
            return h, w
    return _largest(height, width, limits)


def _largest(height: int, width: int, limits: CropLimits) -> tuple[int, int]:
    """Return the largest crop with an allowed ratio, scaled down to the maximum area."""
    narrow, wide = limits.ratio
    w = min(width, max(1, int(height * wide)))
    h = min(height, max(1, int(width / narrow)))
    scale = math.sqrt(min(1.0, limits.area[1] * height * width / (h * w)))
    return max(1, int(h * scale)), max(1, int(w * scale))


class RowDraws:
    """Random numbers for the rows of a batch.

    Args:
        ctx: context of an op with attributes ``seed``, ``has_seed`` and ``region``.
        draws: number of random numbers per row.
    """

    def __init__(self, ctx: BindContext, count: int, draws: int) -> None:
        seed = ctx.attrs["seed"] if ctx.attrs["has_seed"] else ctx.seed
        region = ctx.attrs["region"]
        self._uniform = Uniform(seed)
        self._first = (region[0][0] if region else 0) * draws
        self._step = ctx.step
        self.numbers = np.empty((count, draws), np.float32)

    def draw(self) -> None:
        """Draw the numbers of the running step."""
        self._uniform.fill(self.numbers, int(self._step), 0, self._first)


def crop_limits(attrs: Any) -> CropLimits:
    """Return the limits in an op's attributes."""
    return CropLimits(
        tuple(attrs["random_area"]), tuple(attrs["random_aspect_ratio"]), attrs["num_attempts"]
    )
