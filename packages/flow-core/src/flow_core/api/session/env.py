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
    """Create the session, and connect the processes of the program, if several.

    The function returns in all of them: each runs the whole script.
    """
    return default_session().world is None or True


def machine(*val: object) -> None:
    """Set the machines of the program, as a list or several arguments, the first machine first.

    Their number is the default of ``flow.config.machine_num``.  Processes that a launcher started
    are distributed over them.  Scripts started manually on each of them connect through these
    addresses, at the first job or ``flow.env.init``, by means of the package flow-dist.  On a host
    that is not among them a single process simulates all of them.

    Args:
        val: per machine an address, or a dict with its ``addr``.

    Raises:
        ConfigError: no machine, a duplicate, or an invalid address.

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
            allowed='distinct addresses, such as [{"addr": "10.0.0.1"}, {"addr": "10.0.0.2"}]',
        )
    _keep("machine", tuple(addresses))
    resources = default_session().resources
    if not resources.others.get("env.machine_num"):
        resources.machine_num = len(addresses)


def ctrl_port(val: int) -> None:
    """Set the port at which the first machine listens for the others, without a launcher."""
    _keep("ctrl_port", val)


def data_port(val: int) -> None:
    """Set the data port, for a plugin that connects machines."""
    _keep("data_port", val)


def grpc_use_no_signal(val: bool = True) -> None:
    """Accept OneFlow's setting without effect: gRPC is not used."""
    _keep("grpc_use_no_signal", val)


def log_dir(val: str) -> None:
    """Accept OneFlow's setting without effect: logging uses Python's `logging`."""
    _keep("log_dir", val)


def logtostderr(val: int) -> None:
    """Accept OneFlow's setting without effect: logging uses Python's `logging`."""
    _keep("logtostderr", val)


def logbuflevel(val: int) -> None:
    """Accept OneFlow's setting without effect: logging uses Python's `logging`."""
    _keep("logbuflevel", val)


def current_resource() -> dict[str, Any]:
    """Return the devices and settings of the session."""
    resources = default_session().resources
    return {
        "machine_num": resources.machine_num,
        "gpu_device_num": resources.gpu_device_num,
        "cpu_device_num": resources.cpu_device_num,
        **resources.others,
    }
