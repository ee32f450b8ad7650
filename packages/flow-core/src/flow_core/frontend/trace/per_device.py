"""Numbers that differ between devices: sizes of blobs in the mirrored view."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flow_core.base.errors import JobError

Number = int | float


class PerDevice:
    """One number per device: a size that differs because devices are fed arrays of other sizes.

    Arithmetic on a `PerDevice` returns a `PerDevice`.  Attributes of ops accept a `PerDevice`: the
    op on each device gets the number of that device.  Using a `PerDevice` as a single number (in a
    condition, or as a size of a variable) is an error.

    >>> size = PerDevice((4, 6))
    >>> size * 2, 3 + size // 2, -size, size == 5, 12 / size
    (PerDevice(8, 12), PerDevice(5, 6), PerDevice(-4, -6), False, PerDevice(3.0, 2.0))
    """

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Number]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        return f"PerDevice({', '.join(map(str, self.values))})"

    def __hash__(self) -> int:
        return hash(self.values)

    def _fail(self, *_: object) -> NoReturn:
        raise JobError.at_caller(
            "use of a size",
            found=f"{', '.join(map(str, self.values))} on the devices of the mirrored view",
            allowed="one number for all devices",
            hint="feed arrays of the same shape to all devices, or write -1 for this size",
        )

    __int__ = __index__ = __float__ = _fail

    def __bool__(self) -> bool:
        answers = set(map(bool, self.values))
        return answers.pop() if len(answers) == 1 else self._fail()


def _operand_pairs(one: object, other: object) -> list[tuple[Any, Any]]:
    """Return, for each device, the left and right operand of an operator."""
    devices = next(len(x.values) for x in (one, other) if isinstance(x, PerDevice))
    sides = (x.values if isinstance(x, PerDevice) else (x,) * devices for x in (one, other))
    return list(zip(*sides, strict=True))


def _arithmetic(function: Callable[[Any, Any], Any], swap: bool) -> Callable[..., Any]:
    def method(self: PerDevice, other: object) -> Any:
        if not isinstance(other, int | float | PerDevice):
            return NotImplemented
        left, right = (other, self) if swap else (self, other)
        return per_device([function(a, b) for a, b in _operand_pairs(left, right)])

    return method


def _comparison(function: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def method(self: PerDevice, other: object) -> Any:
        if not isinstance(other, int | float | PerDevice):
            return NotImplemented
        answers = {bool(function(a, b)) for a, b in _operand_pairs(self, other)}
        return answers.pop() if len(answers) == 1 else self._fail()

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow"):
    setattr(PerDevice, f"__{_name}__", _arithmetic(getattr(operator, _name), False))
    setattr(PerDevice, f"__r{_name}__", _arithmetic(getattr(operator, _name), True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(PerDevice, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name in ("neg", "abs"):
    _unary = getattr(operator, _name)
    setattr(PerDevice, f"__{_name}__", lambda self, f=_unary: per_device(map(f, self.values)))


def per_device(values: Any) -> Any:
    """Return a single number if the numbers of all devices are equal, otherwise a `PerDevice`.

    >>> per_device([4, 4]), per_device([4, 6])
    (4, PerDevice(4, 6))
    """
    numbers = tuple(values)
    return numbers[0] if all(n == numbers[0] for n in numbers) else PerDevice(numbers)


def each(function: Callable[[Any], Any], value: object) -> Any:
    """Apply a function to a number, or to each number of a `PerDevice`.

    >>> each(float, 3), each(float, PerDevice((1, 2)))
    (3.0, PerDevice(1.0, 2.0))
    """
    if isinstance(value, PerDevice):
        return per_device(map(function, value.values))
    return function(value)


def differs(value: object) -> bool:
    """Return whether a value is a `PerDevice`, or a nested sequence that contains one."""
    if isinstance(value, list | tuple):
        return any(map(differs, value))
    return isinstance(value, PerDevice)


def on_device(value: object, rank: int) -> Any:
    """Return a value in which each `PerDevice` is replaced by the number of one device."""
    if isinstance(value, list | tuple):
        return tuple(on_device(v, rank) for v in value)
    return value.values[rank] if isinstance(value, PerDevice) else value
