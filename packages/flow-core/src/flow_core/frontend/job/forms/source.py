"""A traced job, as the search for its forms takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Value


@dataclass(frozen=True, slots=True)
class Source:
    """A traced and differentiated job.

    Attributes:
        build: the job.
        values: the values to fetch.
        inputs: names of its ``input`` ops, in the order in which arrays are fed to them.
    """

    build: JobBuild
    values: Sequence[Value]
    inputs: Sequence[str]
