"""The process's environment: ``flow.env``."""

from __future__ import annotations

from typing import Any

from flow_core.base.errors import ConfigError, user_line
from flow_core.frontend.session.session import default_session

__all__ = [
    "ctrl_port",
    "current_resource",
    "data_port",
    "grpc_use_no_signal",
    "init",
    "log_dir",
    "logbuflevel",
    "logtostderr",
    "machine",
]


def _keep(name: str, value: object) -> None:
    default_session().resources.others[f"env.{name}"] = value


def init() -> bool:
    """Makes the session, and joins the processes of the program where there are several.

    Returns in all of them: each runs the whole script.
    """
    return default_session().world is None or True


def machine(*val: object) -> None:
    """The machines of the program, as a list or several arguments, the first machine first.

    Their number is that of ``flow.config.machine_num`` unless that says another one.  Processes
    that a launcher has started are dealt over them.  A script that was started by hand on each of
    them finds the others by these addresses, at its first job or ``flow.env.init``: the package
    flow-dist joins them.  On a host that is none of them one process is all of them.

    Args:
        val: per machine an address, or a dict with its ``addr``.

    Raises:
        ConfigError: no machine, one twice, or something else.

    >>> import oneflow as flow
    >>> flow.env.machine([{"addr": "10.0.0.1"}, {"addr": "10.0.0.2"}])
    >>> flow.env.current_resource()["machine_num"]
    2
    >>> flow.env.machine("127.0.0.1")
    """
    given = val[0] if len(val) == 1 and isinstance(val[0], list | tuple) else val
    addresses = [m.get("addr") if isinstance(m, dict) else m for m in given]
    wrong = [a for a in addresses if not isinstance(a, str) or addresses.count(a) > 1]
    if wrong or not addresses:
        raise ConfigError(
            "env.machine",
            at=user_line(2),
            found=f"{given!r:.200}",
            allowed='addresses that differ, such as [{"addr": "10.0.0.1"}, {"addr": "10.0.0.2"}]',
        )
    _keep("machine", tuple(addresses))
    resources = default_session().resources
    if not resources.others.get("env.machine_num"):
        resources.machine_num = len(addresses)


def ctrl_port(val: int) -> None:
    """The port at which the first machine listens for the others, where no launcher starts them."""
    _keep("ctrl_port", val)


def data_port(val: int) -> None:
    """The port of data, kept for a plugin that joins machines."""
    _keep("data_port", val)


def grpc_use_no_signal(val: bool = True) -> None:
    """Kept for OneFlow's programs; there is no gRPC here."""
    _keep("grpc_use_no_signal", val)


def log_dir(val: str) -> None:
    """Kept for OneFlow's programs; logging goes through Python's `logging`."""
    _keep("log_dir", val)


def logtostderr(val: int) -> None:
    """Kept for OneFlow's programs; logging goes through Python's `logging`."""
    _keep("logtostderr", val)


def logbuflevel(val: int) -> None:
    """Kept for OneFlow's programs; logging goes through Python's `logging`."""
    _keep("logbuflevel", val)


def current_resource() -> dict[str, Any]:
    """The devices and settings of the session."""
    resources = default_session().resources
    return {
        "machine_num": resources.machine_num,
        "gpu_device_num": resources.gpu_device_num,
        "cpu_device_num": resources.cpu_device_num,
        **resources.others,
    }
