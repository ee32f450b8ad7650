"""Losses under their older names: ``flow.losses``."""

from __future__ import annotations

from flow_core.frontend.trace.blob import Blob
from flow_core.frontend.trace.job_build import current_job

__all__ = ["add_loss"]


def add_loss(loss: Blob) -> None:
    """Minimize a loss with the optimizer that ``function_config.train`` describes.

    Args:
        loss: a blob.
    """
    current_job("losses.add_loss").add_loss(loss)
