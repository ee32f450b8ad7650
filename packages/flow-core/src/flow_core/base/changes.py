"""A condition variable that Ctrl-C may interrupt at any instruction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Changes:
    """A lock, and threads that wait for changes of the state that it guards.

    Python raises KeyboardInterrupt between any two instructions of the main thread.  The methods of
    `threading.Condition` are written in Python, so an interrupt in them can leave its lock held
    forever, or release it twice.  Here, a thread acquires the lock directly and waits without
    holding it; acquiring and waiting are single C calls.

    Attributes:
        lock: must be held, in a ``with`` block, to read or change the state and to `notify`.
    """

    __slots__ = ("_gates", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._gates: list[SimpleQueue[None]] = []

    def gate(self) -> SimpleQueue[None]:
        """Return a queue in which the next change puts an item.

        Call this method while holding the lock, and the queue's `get` without holding it.
        """
        gate: SimpleQueue[None] = SimpleQueue()
        self._gates.append(gate)
        return gate

    def notify(self) -> None:
        """Wake all waiting threads; the caller must hold the lock."""
        for gate in self._gates:
            gate.put(None)
        self._gates.clear()

    def wait_until(self, attempt: Callable[[], bool]) -> None:
        """Block until ``attempt`` returns True.

        ``attempt`` is called at the start and after each change, with the lock held.
        """
        while True:
            with self.lock:
                if attempt():
                    return
                gate = self.gate()
            gate.get()
