"""The choice of executables that observe the tasks of each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError
from flow_core.runtime.executable import Executable
from flow_core.runtime.finite_check import CheckedExecutable, NaNCheckedExecutable
from flow_core.runtime.trace import TracedExecutable


def observed_executable(settings: Settings) -> Callable[..., Executable]:
    """Return the function that creates the executables that the settings request.

    Raises:
        ConfigError: the settings request both a trace and checks of numbers, which take time that
            a trace would show.
    """
    if settings.trace and settings.check_finite != "off":
        raise ConfigError(
            "observing the tasks of a job",
            found=f"FLOW_TRACE={settings.trace!r} and FLOW_CHECK_FINITE={settings.check_finite!r}",
            allowed="one of them, because the checks would distort the times of the trace",
        )
    if settings.trace:
        return partial(TracedExecutable, file=settings.trace)
    kind = NaNCheckedExecutable if settings.check_finite == "nan" else CheckedExecutable
    file = settings.check_finite_file
    return partial(kind, file=file) if file else kind
