"""OneFlow's names that have no equivalent here; each raises an error that names an alternative.

Args:
    path: without effect.
    scp_binary, use_uuid, ssh_port: without effect.

Raises: UnsupportedError: always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from flow_core.base.errors import UnsupportedError
from flow_core.frontend.session.session import default_session

__all__ = [
    "cache_int8_calibration", "delete_worker", "get_compile_flags", "get_include", "get_lib",
    "get_link_flags", "init_worker", "write_int8_calibration",
]  # fmt: skip

PLUGIN = "write a plugin that registers the op: docs/architecture.md, Add an op"
LAUNCHER = "start the program on every machine, with the launcher of the package flow-dist"


def _refuse(attempted: str, found: str, allowed: str, hint: str) -> NoReturn:
    raise UnsupportedError.at_caller(attempted, found=found, allowed=allowed, hint=hint)


def write_int8_calibration(path: str) -> NoReturn:
    """Raise an `UnsupportedError` that names the alternative: TensorRT is not supported."""
    _no_tensorrt("write_int8_calibration")


def cache_int8_calibration() -> NoReturn:
    """Raise an `UnsupportedError` that names the alternative: TensorRT is not supported."""
    _no_tensorrt("cache_int8_calibration")


def _no_tensorrt(name: str) -> NoReturn:
    _refuse(
        f"flow.tensorrt.{name}",
        "calibration for TensorRT, which is not supported",
        "kernels of plugins",
        "flow.quantization.moving_average_min_maxObserver observes ranges in training",
    )


def _nothing_to_link(name: str, reason: str) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        found = "a build of an op in C++ against OneFlow's headers"
        _refuse(f"flow.sysconfig.{name}", found, "ops and kernels of plugins", PLUGIN)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise an `UnsupportedError` that names the alternative: there {reason}."
    return refuse


get_include = _nothing_to_link("get_include", "are no C++ headers")
get_lib = _nothing_to_link("get_lib", "is no C++ library")
get_compile_flags = _nothing_to_link("get_compile_flags", "are no C++ headers")
get_link_flags = _nothing_to_link("get_link_flags", "is no C++ library")


def init_worker(scp_binary: bool = True, use_uuid: bool = True, ssh_port: int = 22) -> None:
    """Do nothing, since the script itself is started on every machine, manually or by a launcher.

    Raises:
        UnsupportedError: the session has several machines, but this process is the only one;
            programs are not copied to other machines.
    """
    _one_machine("init_worker")


def delete_worker(ssh_port: int = 22) -> None:
    """Do nothing, or raise the same error as `init_worker`.

    Raises: UnsupportedError: as for `init_worker`.
    """
    _one_machine("delete_worker")


def _one_machine(name: str) -> None:
    session = default_session()
    machines = max(session.resources.machine_num, _named_machines())
    if machines > 1 and session.world is None:
        found = f"{machines} machines"
        _refuse(f"flow.deprecated.{name}", found, "processes started by a launcher", LAUNCHER)


def _named_machines() -> int:
    """Return the number of machines that ``flow.env.machine`` set."""
    given = default_session().resources.others.get("env.machine", ())
    first = given[0] if len(given) == 1 else given
    return len(first) if isinstance(first, list | tuple) else 1
