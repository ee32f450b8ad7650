"""Functions on the session that programs use implicitly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flow_core.base.config import Settings
from flow_core.base.errors import PluginError, nearest
from flow_core.base.forks import check_process
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session, default_session
from flow_core.plugins.host import load_plugins

USABLE = ("loaded", "disabled")
"""The states of plugins that can be loaded; an earlier call may have disabled some of them."""


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


def open_session_without(plugins: Sequence[str], settings: Settings) -> None:
    """Replace the default session by one that does not load some plugins.

    Args:
        plugins: the names of plugins, or of their distributions, that are not loaded.

    Raises:
        PluginError: the settings load no plugin that has one of the names.
    """
    left_out = settings.disabled_plugins
    origins = [r.origin for r in default_session().registry.plugins if r.state in USABLE]
    origins = [origin for origin in origins if not origin.is_named_in(left_out)]
    for name in plugins:
        if not any(origin.is_named_in([name]) for origin in origins):
            known = [origin.plugin for origin in origins]
            raise PluginError(
                f"leaving out plugin {name!r}",
                found="no plugin or distribution of that name among those that the settings load",
                allowed=", ".join(known),
                hint=nearest(name, known) or None,
            )
    clear_default_session()
    settings = replace(settings, disabled_plugins=(*left_out, *plugins))
    sessions._default[:] = [Session(load_plugins(settings), settings)]


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
