"""The oracle for tests, which compares a job's results on several devices with those on one."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base.arrays import Array
from flow_core.frontend.job.function import AnyJob
from flow_core.observe.oracle import verify
from flow_core.observe.tables import joined
from flow_core.observe.verdict import Verdict, verdict_tables


def assert_like_one_device(
    job: AnyJob,
    devices: int | None = None,
    *,
    steps: int = 2,
    seed: int = 0,
    feeds: Sequence[Sequence[Array]] | None = None,
) -> Verdict:
    """Assert that a job's plan equals the plan of one device, op by op, within rounding.

    Args:
        job: the job function.
        devices: number of devices over which to distribute a job that is placed on one device.
        steps: how many steps to run.
        seed: seed of random inputs.
        feeds: arrays for each step, in the order of the job's inputs; random arrays if None.

    Returns:
        The verdict, with the differences that are within rounding.

    Raises:
        AssertionError: an op is wrong, or a second run was not bitwise equal; the report names the
            ops and their source lines.
    """
    found = verify(job, devices, steps=steps, seed=seed, feeds=feeds)
    assert found.ok, "\n" + joined(verdict_tables(found))
    return found


__all__ = ["assert_like_one_device", "verify"]
