"""The choice of executables that observe the tasks of each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError
from flow_core.runtime.executable import Executable
from flow_core.runtime.finite_check import CheckedExecutable, NaNCheckedExecutable
from flow_core.runtime.recorded import RecordedExecutable, StepRecorder
from flow_core.runtime.stragglers import ComparedExecutable
from flow_core.runtime.trace import TracedExecutable


def observed_executable(
    settings: Settings, recorder: StepRecorder | None = None
) -> Callable[..., Executable]:
    """Return the function that creates the executables that the settings request.

    Args:
        recorder: what records the steps of the session, None if nothing does.

    Raises:
        ConfigError: the settings request several observations, of which one would take time that
            another shows, or change what another sees.
    """
    asked = {
        "FLOW_TRACE": settings.trace,
        "FLOW_CHECK_FINITE": settings.check_finite if settings.check_finite != "off" else "",
        "FLOW_REPLAY": settings.replay if recorder is not None else "",
        "FLOW_STRAGGLERS": settings.stragglers,
    }
    given = [f"{name}={value!r}" for name, value in asked.items() if value]
    if len(given) > 1:
        raise ConfigError(
            "observing the tasks of a job",
            found=" and ".join(given),
            allowed="one of them, because the checks would distort the times of the trace",
        )
    if recorder is not None:
        return partial(RecordedExecutable, recorder=recorder)
    if settings.stragglers:
        return partial(ComparedExecutable, file=settings.stragglers)
    if settings.trace:
        return partial(TracedExecutable, file=settings.trace)
    kind = NaNCheckedExecutable if settings.check_finite == "nan" else CheckedExecutable
    file = settings.check_finite_file
    return partial(kind, file=file) if file else kind
