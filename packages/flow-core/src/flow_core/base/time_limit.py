"""Call a function of a plugin or of a library with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class CallTimeoutError(Exception):
    """A call did not return in time; its thread is abandoned."""


def call_within(
    seconds: float, call: Callable[[], Result], progress: Callable[[], object] | None = None
) -> Result:
    """Call a function in a separate thread, and wait for its result.

    Args:
        progress: what the function has done so far; the limit starts anew when this changes.

    Raises:
        CallTimeoutError: the function does not return within the limit.

    >>> call_within(10, lambda: 3)
    3
    """
    answers: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            answers.put((None, error))

    threading.Thread(target=answer, name="flow-call", daemon=True).start()
    before = progress() if progress else None
    while (answered := _taken(answers, seconds)) is None:
        now = progress() if progress else before
        if now == before:
            raise CallTimeoutError from None
        before = now
    result, error = answered
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # set if there is no error


def _taken(answers: SimpleQueue[Result], seconds: float) -> Result | None:
    try:
        return answers.get(timeout=seconds)
    except Empty:
        return None
