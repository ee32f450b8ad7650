"""Call a plugin's function with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class CallTimeoutError(Exception):
    """A call did not return in time; its thread is abandoned."""


def call_within(seconds: float, call: Callable[[], Result]) -> Result:
    """Call a function in a separate thread, and wait for its result.

    Args:
        seconds: the time limit.
        call: the function.

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

    threading.Thread(target=answer, name="flow-probe", daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except Empty:
        raise CallTimeoutError from None
    if error is not None:
        raise error
    return found  # type: ignore[return-value]  # set if there is no error
