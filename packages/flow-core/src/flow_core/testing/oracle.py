"""The oracle for tests: a job on several devices computes what it computes on one."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base.arrays import Array
from flow_core.frontend.job.function import JobFunction
from flow_core.observe.oracle import verify
from flow_core.observe.tables import joined
from flow_core.observe.verdict import Verdict, verdict_tables


def assert_like_one_device(
    job: JobFunction,
    devices: int | None = None,
    *,
    steps: int = 2,
    seed: int = 0,
    feeds: Sequence[Sequence[Array]] | None = None,
) -> Verdict:
    """A job's plan equals the plan of one device, op by op, but for rounding.

    Args:
        job: the job function.
        devices: spread a job that is placed on one device over so many.
        steps: how many steps to run.
        seed: of random inputs.
        feeds: arrays for each step, in the order of the job's inputs; random ones when None.

    Returns:
        The verdict, to look at what differs by rounding.

    Raises:
        AssertionError: an op is wrong, or a second run gave other bits; the report names the
            ops by the user's lines.
    """
    found = verify(job, devices, steps=steps, seed=seed, feeds=feeds)
    assert found.ok, "\n" + joined(verdict_tables(found))
    return found


__all__ = ["assert_like_one_device", "verify"]
