"""The process's environment: ``flow.env``."""

from __future__ import annotations

from typing import Any

from flow_core.frontend.session import default_session

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


def _keep(name: str, value: Any) -> None:
    default_session().resources.others[f"env.{name}"] = value


def init() -> bool:
    """Makes the session; nothing else has to be started for one process."""
    default_session()
    return True


def machine(*val: Any) -> None:
    """The addresses of the machines, kept for a plugin that joins them."""
    _keep("machine", val)


def ctrl_port(val: int) -> None:
    """The port of control messages, kept for a plugin that joins machines."""
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
