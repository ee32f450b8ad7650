"""What a process does before it is ended from outside."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG = logging.getLogger(__name__)

BEFORE: list[Callable[[str], object]] = []
"""Called with the reason, one after the other, before a process is ended; they must not block."""


def prepare(message: str) -> None:
    """Calls all of them; nothing that they raise keeps the process alive."""
    for call in tuple(BEFORE):
        try:
            call(message)
        except Exception:
            LOG.exception("before the end")
