"""Random numbers of a device's part, equal to those of the same elements of the logical tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.philox import CHUNK, Place, Uniform, kept_of, stretches
from flow_core.base.shapes import Shape, num_elements
from flow_core.device import Launch

Use = Callable[[Any, Any], object]
"""``use(numbers, elements)`` of two matrices: consumes the numbers drawn for the elements."""

Part = tuple[Shape, Any]


def scratch_part(shape: Sequence[int], place: Place | None) -> Part:
    """Return the workspace that `drawing` needs."""
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
    """Return a launch that draws the numbers of a box for the current step, chunk by chunk.

    Args:
        generator: the generator with the op's key.
        out: C-contiguous array of the box.
        place: position of the box; None for the whole tensor.
        scratch: array of the shape of `scratch_part`.
        step: 0-d array with the step number.
        use: consumes the numbers of each chunk.
        draw: index of the draw within the step.
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
    """Store the numbers unchanged."""
    np.copyto(elements, numbers)
