"""Waiting for what other threads change, in a way that Ctrl-C may interrupt anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Changes:
    """A lock, and threads that wait for changes of what it guards.

    Python raises KeyboardInterrupt between any two instructions of the main thread.  The methods of
    `threading.Condition` are Python's, so an interrupt in them leaves its lock held for ever, or
    released twice.  Here a thread enters the lock itself, and waits with no lock held, both in C.

    Attributes:
        lock: hold it, by ``with``, to look at the state, to change it, and to `tell`.
    """

    __slots__ = ("_gates", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._gates: list[SimpleQueue[None]] = []

    def gate(self) -> SimpleQueue[None]:
        """What the next change comes through, for who holds the lock now: `get` without it."""
        gate: SimpleQueue[None] = SimpleQueue()
        self._gates.append(gate)
        return gate

    def tell(self) -> None:
        """Wakes all that wait; the caller holds the lock."""
        for gate in self._gates:
            gate.put(None)
        self._gates.clear()

    def until(self, attempt: Callable[[], bool]) -> None:
        """Waits until an attempt, made with the lock held, again after each change, succeeds."""
        while True:
            with self.lock:
                if attempt():
                    return
                gate = self.gate()
            gate.get()
