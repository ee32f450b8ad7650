"""Random numbers of one device's part: those that its elements have in the logical tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.philox import CHUNK, Place, Uniform, kept_of, stretches
from flow_core.base.shapes import Shape, num_elements
from flow_core.device import Launch

Use = Callable[[Any, Any], object]
"""``use(numbers, elements)`` of two matrices: what to do with the numbers of some elements."""

Part = tuple[Shape, Any]


def scratch_part(shape: Sequence[int], place: Place | None) -> Part:
    """The workspace that `drawing` needs."""
    size = num_elements(shape) if place is None else CHUNK
    return (min(size, CHUNK),), np.float32


def drawing(
    generator: Uniform,
    out: Array,
    place: Place | None,
    scratch: Array,
    step: Array,
    use: Use,
    draw: int = 0,
) -> Launch:
    """A launch that draws the numbers of a box for the running step, chunk by chunk.

    Args:
        generator: under the op's key.
        out: C-contiguous array of the box.
        place: where the box lies, None for the whole tensor.
        scratch: as `scratch_part` says.
        step: 0-d array with the number of the step.
        use: what is done with the numbers of each chunk.
        draw: which draw of the step.
    """
    flat, fill = out.reshape(-1), generator.fill
    rows = []
    for s in stretches(out.shape, place):
        numbers = scratch[: s.drawn]
        elements = flat[s.first : s.first + s.rows * s.kept].reshape(s.rows, s.kept)
        rows.append((s.start, numbers, kept_of(s, numbers), elements))

    def launch() -> None:
        now = int(step)
        for start, numbers, kept, elements in rows:
            fill(numbers, now, draw, start)
            use(kept, elements)

    return launch


def put(numbers: Array, elements: Array) -> None:
    """The use that keeps the numbers as they are."""
    np.copyto(elements, numbers)
