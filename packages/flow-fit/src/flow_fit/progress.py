"""A progress line with rates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Generic, TextIO, TypeVar

from flow_core.base.errors import shown
from flow_fit.arguments import check, check_callable, check_count, check_iterable, number

T = TypeVar("T")


class Progress(Generic[T]):
    """Iterates over items, and reports how far and how fast.

    On a terminal, one line is rewritten; elsewhere, such as in a file, a line is added for each
    report.

    Args:
        items: what to iterate over.
        total: the number of items; by default ``len(items)``, if it has a length.
        unit: the name of an item in the report.
        every: the seconds between two reports.
        stream: where to report; standard error by default.
        clock: returns the time in seconds.
        silent: whether to report nothing.

    Raises:
        ConfigError: an argument has another type.
    """

    def __init__(
        self,
        items: Iterable[T],
        total: int | None = None,
        unit: str = "steps",
        every: float = 1.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = perf_counter,
        silent: bool = False,
    ) -> None:
        check_iterable("Progress", "items", items, "what can be iterated")
        if total is not None:
            check_count("Progress", "total", total, 0)
        seconds = isinstance(every, int | float) and every >= 0
        check(seconds, "Progress", f"every={shown(every)}", "seconds, 0 or more")
        check_callable("Progress", "clock", clock, "a function that returns seconds")
        writes = stream is None or (hasattr(stream, "write") and hasattr(stream, "isatty"))
        check(writes, "Progress", f"stream={shown(stream)}", "a text stream, such as sys.stdout")
        self._items = items
        self._total = total if total is not None else getattr(items, "__len__", lambda: None)()
        self._unit, self._every, self._clock = unit, every, clock
        self._stream = sys.stderr if stream is None else stream
        self._silent = silent
        self._numbers: dict[str, float] = {}
        self._done = 0
        self._width = 0

    def show(self, /, **numbers: float) -> None:
        """Set numbers for the next report, such as a loss; their names precede them.

        Raises:
            ConfigError: a value is not one number.
        """
        self._numbers |= {name: number("Progress.show", value) for name, value in numbers.items()}

    def __iter__(self) -> Iterator[T]:
        start = reported = self._clock()
        self._done = 0
        try:
            for item in self._items:
                yield item
                self._done += 1
                now = self._clock()
                if now - reported >= self._every and not self._silent:
                    self._report(now - start)
                    reported = now
        finally:
            if self._done and not self._silent:
                self._report(self._clock() - start)
                self._end()

    def __repr__(self) -> str:
        return f"Progress({self.text(0.0)})"

    def text(self, seconds: float) -> str:
        """Return the report after a number of seconds."""
        rate = self._done / seconds if seconds > 0 else 0.0
        parts = [f"{self._done}{'' if self._total is None else f'/{self._total}'} {self._unit}"]
        parts.append(f"{rate:.4g} {self._unit}/s")
        left = None if self._total is None else self._total - self._done
        if left and rate:
            parts.append(f"{_duration(left / rate)} left")
        else:
            parts.append(_duration(seconds))
        parts += [f"{name} {number:.4g}" for name, number in self._numbers.items()]
        return "  ".join(parts)

    def _report(self, seconds: float) -> None:
        text = self.text(seconds)
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _end(self) -> None:
        if self._stream.isatty():
            self._stream.write("\n")


def _duration(seconds: float) -> str:
    """Return a duration as text.

    >>> _duration(5.2), _duration(75), _duration(7384)
    ('5 s', '1:15', '2:03:04')
    """
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"
