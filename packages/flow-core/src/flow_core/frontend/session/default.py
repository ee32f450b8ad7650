"""Functions on the session that programs use implicitly."""

from __future__ import annotations

from flow_core.base.config import Settings
from flow_core.base.forks import check_process
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session
from flow_core.plugins.registry import Registry


def clear_default_session() -> None:
    """Deliver pending results, then drop all jobs and variables of the default session.

    Raises:
        BaseException: an error of a callback; the session is cleared nevertheless.

    Example:
        >>> @flow.global_function()
        ... def job() -> tp.Numpy:
        ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        >>> _ = job()
        >>> flow.clear_default_session()
        >>> flow.get_all_variables()
        {}
    """
    check_process()
    if sessions._default:
        old = sessions._default[0]
        errors = old.close()
        sessions._default[0] = new = Session(old.registry, old.settings)
        new.resources = old.resources.kept()
        for error in errors:
            raise error


def replace_default_session(registry: Registry, settings: Settings) -> None:
    """Let programs use a new session with other plugins and settings implicitly."""
    sessions._default[:] = [Session(registry, settings)]


def sync_default_session() -> None:
    """Wait until all asynchronous job calls are delivered; raise their errors.

    Example:
        >>> results = []
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Callback[tp.Numpy]:
        ...     return 2 * x
        >>> job([1, 2])(results.append)
        >>> flow.sync_default_session()
        >>> results
        [array([2., 4.], dtype=float32)]
    """
    check_process()
    if sessions._default:
        sessions._default[0].sync()
