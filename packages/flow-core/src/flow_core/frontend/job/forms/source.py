"""A traced job, as the search for its forms takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Value


@dataclass(frozen=True, slots=True)
class Source:
    """A traced and differentiated job."""

    build: JobBuild
    values: Sequence[Value]  # to fetch
    inputs: Sequence[str]  # in the order in which arrays are fed to them
