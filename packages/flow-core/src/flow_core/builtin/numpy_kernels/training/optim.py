"""Kernels of the update ops: a few passes over each variable, in tiles that stay in cache.

16-bit variables are updated in float32: a tile is widened into scratch memory, updated there and
rounded back once.  Numbers that depend on the step, such as the learning rate, are written to 0-d
arrays by the first launch, so that all other launches are plain NumPy calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import Part, carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.training import gradients
from flow_core.builtin.numpy_kernels.training.schedules import TILE, number
from flow_core.device import Launch
from flow_core.ir.update_rules import BY_TYPE, DIFF, MODEL, RATE, Update, optional_inputs
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

NUMBERS = 8
Body = Callable[["Frame"], Iterator[Launch]]


def _regularized(query: KernelQuery) -> bool:
    return bool(query.attrs["l1"] or query.attrs["l2"])


def _parts(query: KernelQuery, whole: bool) -> dict[str, Part]:
    """Return the scratch arrays of an update by name; ``whole`` adds one as large as the model."""
    row, model = BY_TYPE[query.op], query.inputs[MODEL]
    wide = model.dtype.accumulate
    size, tile = model.size, (min(model.size, TILE),)
    parts: dict[str, Part] = {"numbers": ((NUMBERS,), wide.numpy), "temp": (tile, wide.numpy)}
    if _regularized(query) or query.inputs[DIFF].dtype != wide:
        parts["diff"] = (tile, wide.numpy)
    for index in (MODEL, *_state_indices(row)):
        if query.inputs[index].dtype != wide:
            parts[f"input{index}"] = (tile, wide.numpy)
    if query.op == "lion_update":
        parts["other"] = (tile, wide.numpy)
    if not row.local:
        parts["squares"] = ((2, -(-size // gradients.PART)), np.float64)
        parts["doubles"] = ((min(size, gradients.PART),), np.float64)
    if whole:
        parts["whole"] = ((size,), wide.numpy)
    return parts


def _state_indices(row: Update) -> range:
    return range(row.first_state, row.first_state + len(row.states))


@dataclass(frozen=True, slots=True)
class Tile:
    """Views of one part of a variable in the wide type, and launches that load and store the part.

    Attributes:
        index: index of the tile.
        enter: launches that fill ``diff`` and the widened copies.
        leave: launches that round the widened copies back to the variable and its states.
        model, diff, states, temp, whole: the views; ``whole`` is None if not requested.
    """

    index: int
    enter: tuple[Launch, ...]
    leave: tuple[Launch, ...]
    model: Any
    diff: Any
    states: tuple[Any, ...]
    temp: Any
    whole: Any


class Frame:
    """The arrays and scratch memory to which one update op is bound."""

    def __init__(self, ctx: BindContext, whole: bool) -> None:
        query = ctx.query
        self.row = BY_TYPE[query.op]
        self.attrs = ctx.attrs
        self.size = query.inputs[MODEL].size
        self.wide: DType = query.inputs[MODEL].dtype.accumulate
        parts = _parts(query, whole)
        self._scratch = dict(zip(parts, carve(ctx.workspace, *parts.values()), strict=True))
        self._inputs = ctx.inputs
        self._flat = {
            i: ctx.inputs[i].reshape(-1) for i in (*_state_indices(self.row), MODEL, DIFF)
        }
        self._numbers = iter([number(self._scratch["numbers"][i : i + 1]) for i in range(NUMBERS)])
        self.rate = number(ctx.inputs[RATE])
        scale, self._skip = optional_inputs(self.row, query.inputs)
        self._scale = None if scale is None else number(ctx.inputs[scale])
        self._regularized = _regularized(query)
        (self._factor,) = self.numbers(1)
        self._l1, self._l2 = self.constants(self.attrs["l1"], self.attrs["l2"])

    def input(self, index: int) -> Any:
        """Return an input that has one element as a 0-d array."""
        return number(self._inputs[index])

    def numbers(self, count: int) -> tuple[Array, ...]:
        """Return ``count`` 0-d scratch arrays of the type in which the update is computed."""
        return tuple(next(self._numbers) for _ in range(count))

    def constants(self, *values: float) -> tuple[Array, ...]:
        """Return constant 0-d arrays."""
        return tuple(np.array(value, self.wide.numpy) for value in values)

    def other(self, tile: Tile) -> Any:
        """Return a second temporary array of the size of a tile, for updates that have one."""
        return self._scratch["other"][: tile.temp.size]

    @property
    def squares(self) -> Array:
        """Array with two rows of one number per part: the sums of squares for two norms."""
        return self._scratch["squares"]

    def square(self, row: int, tile: Tile, values: Array) -> Iterator[Launch]:
        """Yield launches that write sums of squares of a tile's values to a row of `squares`."""
        sums = self.squares[row, tile.index * (TILE // gradients.PART) :]
        return gradients.square_sums(values, self._scratch["doubles"], sums)

    def scale(self) -> float:
        """Return the factor by which ``diff`` of all tiles must be multiplied in this step."""
        return 1.0 if self._regularized else self._full_scale()

    def _full_scale(self) -> float:
        scale: float = self.attrs["scale"]
        return scale if self._scale is None else scale * float(self._scale)

    def prepare(self) -> tuple[Launch, ...]:
        """Return the launches that must run before those of the tiles."""
        if not self._regularized:
            return ()
        return (_setting((self._factor,), lambda: (self._full_scale(),)),)

    def tiles(self) -> Iterator[Tile]:
        """Yield the tiles in order."""
        for index, start in enumerate(range(0, self.size, TILE)):
            yield self._tile(index, slice(start, min(self.size, start + TILE)))

    def _tile(self, index: int, part: slice) -> Tile:
        enter: list[Launch] = []
        leave: list[Launch] = []
        temp = self._scratch["temp"][: part.stop - part.start]
        model, *states = [
            self._widened(i, part, enter, leave) for i in (MODEL, *_state_indices(self.row))
        ]
        diff = self._diff(part, model, temp, enter)
        whole = self._scratch["whole"][part] if "whole" in self._scratch else None
        return Tile(index, tuple(enter), tuple(leave), model, diff, tuple(states), temp, whole)

    def _widened(self, index: int, part: slice, enter: list[Launch], leave: list[Launch]) -> Any:
        view = self._flat[index][part]
        wide = self._scratch.get(f"input{index}")
        if wide is None:
            return view
        wide = wide[: view.size]
        enter.append(partial(np.copyto, wide, view))
        leave.append(partial(np.copyto, view, wide, "unsafe"))
        return wide

    def _diff(self, part: slice, model: Array, temp: Array, enter: list[Launch]) -> Any:
        """Return the gradient of a tile, widened, and regularized if l1 or l2 is set."""
        view = self._flat[DIFF][part]
        if "diff" not in self._scratch:
            return view
        diff = self._scratch["diff"][: view.size]
        if view.dtype != diff.dtype:
            enter.append(partial(np.copyto, diff, view, "unsafe"))
            view = diff
        if self._regularized:
            enter.extend(self._penalties(view, model, temp, diff))
        return diff

    def _penalties(self, view: Array, model: Array, temp: Array, diff: Array) -> Iterator[Launch]:
        yield call(np.multiply, view, self._factor, out=diff)
        if self.attrs["l2"]:
            yield call(np.multiply, model, self._l2, out=temp)
            yield call(np.add, diff, temp, out=diff)
        if self.attrs["l1"]:
            yield call(np.sign, model, out=temp)
            yield call(np.multiply, temp, self._l1, out=temp)
            yield call(np.add, diff, temp, out=diff)

    def decay(self, tile: Tile, keep: Array) -> tuple[Launch, ...]:
        """Return the launch that applies weight decay, if any."""
        if not self.attrs["weight_decay"]:
            return ()
        return (call(np.multiply, tile.model, keep, out=tile.model),)

    def guarded(self, launches: Iterable[Launch]) -> Launch | Sequence[Launch]:
        """Return the launches, or one launch that runs them unless the input ``skip_if`` is set."""
        if self._skip is None:
            return tuple(launches)
        return partial(_run_unless, number(self._inputs[self._skip]), tuple(launches))


def _run_unless(skip: Array, launches: Sequence[Launch]) -> None:
    if not skip.item():
        for launch in launches:
            launch()


def _setting(targets: Sequence[Array], compute: Callable[[], tuple[float, ...]]) -> Launch:
    """Return a launch that computes numbers and writes them to 0-d arrays."""

    def write() -> None:
        for target, value in zip(targets, compute(), strict=True):
            target[()] = value

    return write


def _sgd(f: Frame) -> Iterator[Launch]:
    rate, keep = f.numbers(2)
    decay = f.attrs["weight_decay"]

    def numbers() -> tuple[float, ...]:
        now = f.rate.item()
        return now * f.scale(), 1.0 - now * decay

    yield _setting((rate, keep), numbers)
    for t in f.tiles():
        yield from t.enter
        yield call(np.multiply, t.diff, rate, out=t.temp)
        yield from f.decay(t, keep)
        yield call(np.subtract, t.model, t.temp, out=t.model)
        yield from t.leave


def _momentum(f: Frame) -> Iterator[Launch]:
    rate, keep = f.numbers(2)
    (beta,) = f.constants(f.attrs["beta"])
    decay = f.attrs["weight_decay"]

    def numbers() -> tuple[float, ...]:
        now = f.rate.item()
        return now * f.scale(), 1.0 - now * decay

    yield _setting((rate, keep), numbers)
    for t in f.tiles():
        (momentum,) = t.states
        yield from t.enter
        yield call(np.multiply, t.diff, rate, out=t.temp)
        yield call(np.multiply, momentum, beta, out=momentum)
        yield call(np.subtract, momentum, t.temp, out=momentum)
        yield from f.decay(t, keep)
        yield call(np.add, t.model, momentum, out=t.model)
        yield from t.leave


def _average(t: Tile, state: Array, beta: Array, part: Array) -> Iterator[Launch]:
    """Yield launches of state = beta * state + part * diff, which leave part * diff in ``temp``."""
    yield call(np.multiply, t.diff, part, out=t.temp)
    yield call(np.multiply, state, beta, out=state)
    yield call(np.add, state, t.temp, out=state)


def _average_square(t: Tile, state: Array, beta: Array, part: Array) -> Iterator[Launch]:
    """Yield launches of state = beta * state + (part * diff) ** 2."""
    yield call(np.multiply, t.diff, part, out=t.temp)
    yield call(np.multiply, t.temp, t.temp, out=t.temp)
    yield call(np.multiply, state, beta, out=state)
    yield call(np.add, state, t.temp, out=state)


def _step(f: Frame, t: Tile, rate: Array, keep: Array) -> Iterator[Launch]:
    """Yield launches of model = keep * model - rate * temp."""
    yield call(np.multiply, t.temp, rate, out=t.temp)
    yield from f.decay(t, keep)
    yield call(np.subtract, t.model, t.temp, out=t.model)


def _moments(f: Frame) -> tuple[Callable[[], tuple[float, float]], tuple[Any, ...]]:
    """Return a function that computes the gradient factors of Adam's moments, and the betas."""
    beta1, beta2 = f.attrs["beta1"], f.attrs["beta2"]

    def shares() -> tuple[float, float]:
        scale = f.scale()
        return (1.0 - beta1) * scale, sqrt(1.0 - beta2) * scale

    return shares, f.constants(beta1, beta2)


def _adam(f: Frame) -> Iterator[Launch]:
    rate, keep, part1, part2 = f.numbers(4)
    shares, (beta1, beta2) = _moments(f)
    (epsilon,) = f.constants(f.attrs["epsilon"])
    decay = f.attrs["weight_decay"]

    def numbers() -> tuple[float, ...]:
        now = f.rate.item()
        return now, 1.0 - now * decay, *shares()

    yield _setting((rate, keep, part1, part2), numbers)
    for t in f.tiles():
        m, v = t.states
        yield from t.enter
        yield from _average(t, m, beta1, part1)
        yield from _average_square(t, v, beta2, part2)
        yield call(np.sqrt, v, out=t.temp)
        yield call(np.add, t.temp, epsilon, out=t.temp)
        yield call(np.divide, m, t.temp, out=t.temp)
        yield from _step(f, t, rate, keep)
        yield from t.leave


def _rmsprop(f: Frame) -> Iterator[Launch]:
    rate, keep, part, part_square = f.numbers(4)
    share, decay = 1.0 - f.attrs["decay_rate"], f.attrs["weight_decay"]
    beta, epsilon = f.constants(f.attrs["decay_rate"], f.attrs["epsilon"])

    def numbers() -> tuple[float, ...]:
        now, scale = f.rate.item(), f.scale()
        return now * scale, 1.0 - now * decay, share * scale, sqrt(share) * scale

    yield _setting((rate, keep, part, part_square), numbers)
    for t in f.tiles():
        yield from t.enter
        yield from _average_square(t, t.states[0], beta, part_square)
        yield from _variance(f, t, beta, part, epsilon)
        yield call(np.sqrt, t.temp, out=t.temp)
        yield call(np.divide, t.diff, t.temp, out=t.temp)
        yield from _step(f, t, rate, keep)
        yield from t.leave


def _variance(f: Frame, t: Tile, beta: Array, part: Array, epsilon: Array) -> Iterator[Launch]:
    """Yield launches of temp = mean_square [- mean_gradient ** 2] + epsilon."""
    mean_square, *rest = t.states
    if not rest:
        yield call(np.add, mean_square, epsilon, out=t.temp)
        return
    (mean_gradient,) = rest
    yield from _average(t, mean_gradient, beta, part)
    yield call(np.multiply, mean_gradient, mean_gradient, out=t.temp)
    yield call(np.subtract, mean_square, t.temp, out=t.temp)
    # a variance is never negative, but its rounded value can be
    yield call(np.maximum, t.temp, f.constants(0.0)[0], out=t.temp)
    yield call(np.add, t.temp, epsilon, out=t.temp)


def _adagrad(f: Frame) -> Iterator[Launch]:
    rate, keep, part = f.numbers(3)
    (epsilon,) = f.constants(f.attrs["epsilon"])
    decay = f.attrs["weight_decay"]

    def numbers() -> tuple[float, ...]:
        now, scale = f.rate.item(), f.scale()
        return now * scale, 1.0 - now * decay, scale

    yield _setting((rate, keep, part), numbers)
    for t in f.tiles():
        (total,) = t.states
        yield from t.enter
        yield call(np.multiply, t.diff, part, out=t.temp)
        yield call(np.multiply, t.temp, t.temp, out=t.temp)
        yield call(np.add, total, t.temp, out=total)
        yield call(np.sqrt, total, out=t.temp)
        yield call(np.add, t.temp, epsilon, out=t.temp)
        yield call(np.divide, t.diff, t.temp, out=t.temp)
        yield from _step(f, t, rate, keep)
        yield from t.leave


def _lion(f: Frame) -> Iterator[Launch]:
    rate, keep, part1, part2 = f.numbers(4)
    rest1, rest2 = 1.0 - f.attrs["beta1"], 1.0 - f.attrs["beta2"]
    beta1, beta2 = f.constants(f.attrs["beta1"], f.attrs["beta2"])
    decay = f.attrs["weight_decay"]

    def numbers() -> tuple[float, ...]:
        now, scale = f.rate.item(), f.scale()
        return now, 1.0 - now * decay, rest1 * scale, rest2 * scale

    yield _setting((rate, keep, part1, part2), numbers)
    for t in f.tiles():
        (m,), change = t.states, f.other(t)
        yield from t.enter
        yield call(np.multiply, t.diff, part1, out=t.temp)
        yield call(np.multiply, m, beta1, out=change)
        yield call(np.add, change, t.temp, out=change)
        yield from _average(t, m, beta2, part2)
        yield call(np.sign, change, out=t.temp)
        yield from _step(f, t, rate, keep)
        yield from t.leave


def _square(f: Frame, row: int, t: Tile, values: Array) -> Launch:
    """Return a launch that writes the sum of squares of a tile's values to `Frame.squares`."""
    return partial(np.dot, values, values, number(f.squares[row, t.index : t.index + 1]))


def _norms(f: Frame) -> tuple[float, float]:
    first, second = f.squares
    return sqrt(np.add.reduce(first)), sqrt(np.add.reduce(second))


def _lars(f: Frame) -> Iterator[Launch]:
    local, decay = f.numbers(2)
    (beta,) = f.constants(f.attrs["momentum_beta"])
    step = f.input(RATE + 1)
    root = sqrt(max(f.size, 1))

    def numbers() -> tuple[float, ...]:
        scale = f.scale()
        model, diff = (norm / root for norm in _norms(f))
        below = f.attrs["epsilon"] + diff * abs(scale)
        if step.item():
            below += f.attrs["weight_decay"] * model
        ratio = f.attrs["lars_coefficient"] * model / below if below else 0.0
        if f.attrs["zero_ratio"] and (model == 0 or diff == 0):
            ratio = f.attrs["zero_ratio"]
        now = f.rate.item() * ratio
        return now * scale, now * f.attrs["weight_decay"]

    for t in f.tiles():
        yield from t.enter
        yield from f.square(0, t, t.model)
        yield from f.square(1, t, t.diff)
    yield _setting((local, decay), numbers)
    for t in f.tiles():
        yield from t.enter
        yield from _lars_tile(f, t, local, decay, beta)
        yield from t.leave


def _lars_tile(f: Frame, t: Tile, local: Array, decay: Any, beta: Array) -> Iterator[Launch]:
    (momentum,) = t.states
    yield call(np.multiply, momentum, beta, out=momentum)
    yield call(np.multiply, t.diff, local, out=t.temp)
    yield call(np.subtract, momentum, t.temp, out=momentum)
    if f.attrs["weight_decay"]:
        yield call(np.multiply, t.model, decay, out=t.temp)
        yield call(np.subtract, momentum, t.temp, out=momentum)
    yield call(np.add, t.model, momentum, out=t.model)


def _lamb(f: Frame) -> Iterator[Launch]:
    rate, keep, part1, part2, grow1, grow2 = f.numbers(6)
    shares, betas = _moments(f)
    (epsilon,) = f.constants(f.attrs["epsilon"])
    powers = [f.input(f.row.first_state + 2 + i) for i in range(2)]
    attrs = f.attrs

    def before() -> tuple[float, ...]:
        for power, beta in zip(powers, ("beta1", "beta2"), strict=True):
            power[()] = float(power) * attrs[beta]
        return *shares(), *(1.0 / (1.0 - float(power)) for power in powers)

    def after() -> tuple[float, ...]:
        model, change = _norms(f)
        now = f.rate.item() * (model / change if model > 0 and change > 0 else 1.0)
        return now, 1.0 - now * attrs["weight_decay"]

    yield _setting((part1, part2, grow1, grow2), before)
    for t in f.tiles():
        yield from t.enter
        yield from _lamb_change(f, t, betas, (part1, part2), (grow1, grow2), epsilon)
        yield from t.leave
    yield _setting((rate, keep), after)
    for t in f.tiles():
        yield from _lamb_step(f, t, rate, keep)


def _lamb_change(
    f: Frame, t: Tile, betas: Any, parts: Any, grow: Any, epsilon: Any
) -> Iterator[Launch]:
    """Yield launches that write Adam's change to ``whole`` and sums of squares to ``squares``.

    Row 0 of ``squares`` gets the sum for the model, row 1 the sum for the change.
    """
    m, v = t.states
    yield from _average(t, m, betas[0], parts[0])
    yield from _average_square(t, v, betas[1], parts[1])
    yield call(np.multiply, v, grow[1], out=t.temp)
    yield call(np.add, t.temp, epsilon, out=t.temp)
    yield call(np.sqrt, t.temp, out=t.temp)
    yield call(np.divide, m, t.temp, out=t.whole)
    yield call(np.multiply, t.whole, grow[0], out=t.whole)
    yield from f.square(0, t, t.model)
    yield from f.square(1, t, t.whole)


def _lamb_step(f: Frame, t: Tile, rate: Array, keep: Array) -> Iterator[Launch]:
    yield from t.enter
    yield call(np.multiply, t.whole, rate, out=t.temp)
    yield from f.decay(t, keep)
    yield call(np.subtract, t.model, t.temp, out=t.model)
    yield from t.leave


def _bound(body: Body, whole: bool) -> Callable[[BindContext], Launch | Sequence[Launch]]:
    def bind(ctx: BindContext) -> Launch | Sequence[Launch]:
        frame = Frame(ctx, whole)
        return frame.guarded((*frame.prepare(), *body(frame)))

    return bind


def _update_kernel(op: str, body: Body, whole: bool = False) -> KernelSpec:
    return kernel(
        op,
        _bound(body, whole),
        workspace=lambda query: carved_bytes(*_parts(query, whole).values()),
    )


KERNELS: tuple[KernelSpec, ...] = (
    _update_kernel("sgd_update", _sgd),
    _update_kernel("momentum_update", _momentum),
    _update_kernel("adam_update", _adam),
    _update_kernel("rmsprop_update", _rmsprop),
    _update_kernel("centered_rmsprop_update", _rmsprop),
    _update_kernel("adagrad_update", _adagrad),
    _update_kernel("lion_update", _lion),
    _update_kernel("lars_update", _lars),
    _update_kernel("lamb_update", _lamb, whole=True),
    *gradients.TRANSFORMS,
)
