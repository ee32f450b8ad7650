"""Recorded steps in a notebook or debugger: ``flow.replay``."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flow_core.base.errors import ReplayError

if TYPE_CHECKING:
    from flow_core.observe.replay.run import Replay

__all__ = ["replay"]


def replay(
    job: Any,
    step: int = -1,
    until: str | None = None,
    *,
    file: str | PathLike[str] | None = None,
    devices: int | None = None,
) -> Replay:
    """Run a recorded step of a job again, and return the values of its ops.

    The variables of the session do not change.

    Args:
        job: the job function.
        step: the number of the step, or a negative number that counts from the last one.
        until: the name of the op after which no values are kept; None for all ops.
        file: the file of another program's recording; None for that of this program, in which
            ``FLOW_REPLAY`` is set.
        devices: the number of devices to which the job is moved; None for its own.

    Returns:
        An object whose items are arrays: ``replay["loss"]`` is the result of op ``loss``, and
        ``replay.ops`` are all ops in order.

    Raises: ReplayError: nothing was recorded, or not that step, or the job has no such op.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    ...     return flow.math.exp(x, name="exp")
    >>> flow.replay(job)
    Traceback (most recent call last):
    ...
    flow_core.base.errors.ReplayError: replaying job 'job' (at ...)
      found:   no recorded steps
      allowed: a program that runs with FLOW_REPLAY=FILE, or the file of one
      next:    flow run --record FILE SCRIPT.PY
    """
    from flow_core.base.formats.recorded_steps import read_recording
    from flow_core.observe.replay.run import job_named, position_of, replay_step, variables_before

    session = job.active_session()
    if file is not None:
        recording = read_recording(Path(file))
    elif session.recorder is not None:
        session.sync()
        recording = session.recorder.recording()
    else:
        raise ReplayError.at_caller(
            f"replaying job {job.name!r}",
            found="no recorded steps",
            allowed="a program that runs with FLOW_REPLAY=FILE, or the file of one",
            hint="flow run --record FILE SCRIPT.PY",
        )
    position = position_of(recording, job.name, step)
    values = variables_before(recording, position, job_named(session.jobs))
    return replay_step(job, recording.steps[position], values, until, devices)
