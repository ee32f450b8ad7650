"""Launches that call numpy functions, and launches that run several others in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.device import Launch, Loop


def call(function: Callable[..., object], *arguments: Any, out: Any) -> Launch:
    """Return a launch of ``function(*arguments, out)`` with minimal overhead.

    Scalar arguments should be 0-d arrays, which ufuncs accept without a conversion in each call.
    """
    if function in (np.maximum, np.minimum):
        return partial(function, *arguments, out=out)
    return partial(function, *arguments, out)


def joined(launches: Sequence[Launch]) -> Iterator[Launch]:
    """Yield the launches; consecutive ones that can be joined are one launch.

    See `flow_core.device.Joinable`.
    """
    for join, group in groupby(launches, lambda launch: getattr(launch, "join", None)):
        run = tuple(group)
        yield from run if join is None or len(run) == 1 else (join(run),)


def repeated(loop: Loop) -> Launch:
    """Return a launch that runs a loop: in one call, if all of its launches can be repeated."""
    pairs = [*loop.elements, *loop.results[0], *loop.results[1]]
    regular = all(array.flags.c_contiguous for pair in pairs for array in pair)
    found = {getattr(launch, "repeat", None) for body in loop.bodies for launch in body}
    repeat = found.pop() if regular and len(found) == 1 else None
    if repeat is not None:
        launch: Launch = repeat(loop)
        return launch
    bodies = [tuple(joined(body)) for body in loop.bodies]
    return partial(_run, loop, tuple(zip(bodies, loop.results, strict=True)))


def _run(
    loop: Loop, bound: Sequence[tuple[Sequence[Launch], Sequence[tuple[Array, Array]]]]
) -> None:
    length, step = len(loop.order), loop.step
    start = 0 if loop.counter is None else int(loop.counter) * length
    for number, position in enumerate(loop.order):
        launches, results = bound[(length - number) % 2]
        step[...] = start + position
        for array, sequence in loop.elements:
            np.copyto(array, sequence[position, ...])
        for launch in launches:
            launch()
        for array, sequence in results:
            np.copyto(sequence[position, ...], array)
