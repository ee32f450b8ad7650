"""Random numbers for a device's part of a tensor.

Every element gets the number that it would get if one device drew the whole logical tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.philox import CHUNK, Place, Uniform, kept_of, stretches
from flow_core.base.shapes import Shape, num_elements
from flow_core.device import Launch

Use = Callable[..., object]
"""A function ``use(numbers, ..., elements)`` that stores what it makes of the numbers of each draw
for a matrix of elements.
"""

Part = tuple[Shape, Any]


def scratch_part(shape: Sequence[int], place: Place | None) -> Part:
    """Return the shape and element type of the workspace that `drawing` needs."""
    size = num_elements(shape) if place is None else CHUNK
    return (min(size, CHUNK),), np.float32


def drawing(
    generator: Uniform,
    out: Array,  # C-contiguous array that holds the box
    place: Place | None,  # position of the box in the logical tensor; None for the whole tensor
    scratch: Sequence[Array],  # an array for each draw, with the shape that `scratch_part` returns
    step: Array,
    use: Use,  # stores the numbers of each chunk in the elements of ``out``
    draw: int = 0,  # index of the first draw among the draws of the op within a step
) -> Launch:
    """Return a launch that draws the numbers of a box for the current step, chunk by chunk.

    A box is a device's rectangular part of a logical tensor.
    """
    flat, fill = out.reshape(-1), generator.fill
    rows = []
    for s in stretches(out.shape, place):
        numbers = [array[: s.drawn] for array in scratch]
        elements = flat[s.first : s.first + s.rows * s.kept].reshape(s.rows, s.kept)
        rows.append((s.start, numbers, [kept_of(s, drawn) for drawn in numbers], elements))

    def launch() -> None:
        now = int(step)
        for start, numbers, kept, elements in rows:
            for i, drawn in enumerate(numbers, draw):
                fill(drawn, now, i, start)
            use(*kept, elements)

    return launch


def put(numbers: Array, elements: Array) -> None:
    """Store the numbers unchanged."""
    np.copyto(elements, numbers)
