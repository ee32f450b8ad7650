"""Callbacks that run before this process is terminated because the job has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG = logging.getLogger(__name__)

BEFORE: list[Callable[[str], object]] = []
"""Callbacks, called in order with the reason; they must not block."""


def prepare(message: str) -> None:
    """Call all callbacks; log their exceptions, so that the process still terminates."""
    for call in tuple(BEFORE):
        try:
            call(message)
        except Exception:
            LOG.exception("a callback before termination failed")
