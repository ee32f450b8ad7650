"""Registers: a fixed number of slots between a producer and its consumers.

The protocol is a state machine without threads.  A producer fills a free slot; the slot is free
again when every consumer has acknowledged it.  Items keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from flow_core.base.errors import PlanError


class Register:
    """Slots between one producer and one or more consumers.

    >>> r = Register("fed", ["compute"], slots=1)
    >>> r.try_put("step 0"), r.try_put("step 1")
    (True, False)
    >>> r.try_take("compute"), r.try_put("step 1")
    ('step 0', False)
    >>> r.acknowledge("compute")
    >>> r.try_put("step 1")
    True
    """

    __slots__ = ("_busy", "_queues", "_taken", "consumers", "name", "slots")

    def __init__(self, name: str, consumers: Sequence[str], slots: int) -> None:
        if slots < 1 or not consumers:
            raise PlanError(
                f"making register {name!r}",
                found=f"{slots} slots, {len(consumers)} consumers",
                allowed="at least one slot and one consumer",
            )
        self.name = name
        self.consumers = tuple(consumers)
        self.slots = slots
        self._taken = dict.fromkeys(consumers, 0)
        self._busy: deque[tuple[Any, set[str]]] = deque()  # items, and consumers yet to acknowledge

    @property
    def free(self) -> int:
        return self.slots - len(self._busy)

    @property
    def empty(self) -> bool:
        """Whether every slot is free: all consumers have acknowledged all items."""
        return not self._busy

    def try_put(self, item: object) -> bool:
        """Fill a free slot; return False if no slot is free."""
        if self.free == 0:
            return False
        self._busy.append(
            (item, set(self.consumers))
        )  # one operation, which no interrupt can split
        return True

    def widen(self, slots: int) -> None:
        """Increase the number of slots to at least ``slots``."""
        self.slots = max(self.slots, slots)

    def readable(self, consumer: str) -> bool:
        """Return whether a consumer may take an item, having acknowledged the previous one."""
        return self._taken[consumer] == 0 and any(consumer in left for _, left in self._busy)

    def try_take(self, consumer: str) -> Any:
        """Take and return the consumer's next item; return None if the consumer may take none."""
        if not self.readable(consumer):
            return None
        self._taken[consumer] = 1
        return self._next(consumer)[0]

    def _next(self, consumer: str) -> tuple[Any, set[str]]:
        return next(slot for slot in self._busy if consumer in slot[1])

    def acknowledge(self, consumer: str) -> None:
        """Mark the item that a consumer took as done."""
        if self._taken[consumer] == 0:
            raise PlanError(
                f"register {self.name!r}",
                found=f"an acknowledgment by {consumer!r}, which holds no item",
            )
        self._taken[consumer] = 0
        self._next(consumer)[1].discard(consumer)
        while self._busy and not self._busy[0][1]:
            self._busy.popleft()
