"""The environment of the process: ``flow.env``.

Args:
    val: without effect.
"""

from __future__ import annotations

from typing import Any

from flow_core.base.errors import ConfigError
from flow_core.frontend.session.session import default_session

__all__ = [
    "ctrl_port", "current_resource", "data_port", "grpc_use_no_signal", "init", "log_dir",
    "logbuflevel", "logtostderr", "machine",
]  # fmt: skip


def _keep(name: str, value: object) -> None:
    default_session().resources.others[f"env.{name}"] = value


def init() -> bool:
    """Create the session, and connect the processes of the program if there are several.

    The function returns in every process, since each process runs the whole script.

    Returns: True.

    >>> _ = flow.env.init()
    """
    return default_session().world is None or True


def machine(*val: object) -> None:
    """Set the machines of the program, given as a list or as several arguments in the order of
    ranks.

    The number of machines is the default of ``flow.config.machine_num``.  If a launcher started the
    processes, they are distributed over the machines.  If the script was started manually on each
    machine, the package flow-dist connects the processes through these addresses, at the first job
    or at ``flow.env.init``.  On a host that is not among the machines, a single process simulates
    all of them.

    Args:
        val: for each machine, its address or a dict with the address under ``addr``.

    Raises: ConfigError: there are no addresses, or one is invalid or given twice.

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
        raise ConfigError.at_caller(
            "env.machine",
            found=f"{given!r:.200}",
            allowed='distinct addresses, such as [{"addr": "10.0.0.1"}, {"addr": "10.0.0.2"}]',
        )
    _keep("machine", tuple(addresses))
    resources = default_session().resources
    if not resources.others.get("env.machine_num"):
        resources.machine_num = len(addresses)


def ctrl_port(val: int) -> None:
    """Set the port on which the first machine listens for the others if there is no launcher.

    Args:
        val: a port number.

    >>> flow.env.ctrl_port(50051)
    """
    _keep("ctrl_port", val)


def data_port(val: int) -> None:
    """Set the data port, for a plugin that connects machines.

    Args:
        val: a port number.

    >>> flow.env.data_port(50052)
    """
    _keep("data_port", val)


def grpc_use_no_signal(val: bool = True) -> None:
    """Accept OneFlow's setting without effect: gRPC is not used.

    >>> flow.env.grpc_use_no_signal()
    """
    _keep("grpc_use_no_signal", val)


def log_dir(val: str) -> None:
    """Accept OneFlow's setting without effect: logging uses Python's `logging`.

    >>> flow.env.log_dir("log")
    """
    _keep("log_dir", val)


def logtostderr(val: int) -> None:
    """Accept OneFlow's setting without effect: logging uses Python's `logging`.

    >>> flow.env.logtostderr(True)
    """
    _keep("logtostderr", val)


def logbuflevel(val: int) -> None:
    """Accept OneFlow's setting without effect: logging uses Python's `logging`.

    >>> flow.env.logbuflevel(-1)
    """
    _keep("logbuflevel", val)


def current_resource() -> dict[str, Any]:
    """Return the devices and settings of the session.

    Returns: A dictionary of settings.

    >>> flow.current_resource()["machine_num"]
    1
    """
    resources = default_session().resources
    return {
        "machine_num": resources.machine_num,
        "gpu_device_num": resources.gpu_device_num,
        "cpu_device_num": resources.cpu_device_num,
        **resources.others,
    }
