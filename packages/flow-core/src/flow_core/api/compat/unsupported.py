"""Names of OneFlow for what is done in another way here: each says in which."""

from __future__ import annotations

from typing import NoReturn

from flow_core.base.errors import UnsupportedError, user_line
from flow_core.frontend.session.session import default_session

__all__ = [
    "cache_int8_calibration",
    "delete_worker",
    "dynamic_binary_concat",
    "dynamic_binary_split",
    "get_compile_flags",
    "get_include",
    "get_lib",
    "get_link_flags",
    "init_worker",
    "write_int8_calibration",
]

PLUGIN = "write a plugin that registers the op: docs/architecture.md, Add an op"
LAUNCHER = "start the program on every machine, with the launcher of the package flow-dist"


def _refuse(attempted: str, found: str, allowed: str, hint: str) -> NoReturn:
    raise UnsupportedError(attempted, at=user_line(3), found=found, allowed=allowed, hint=hint)


def write_int8_calibration(path: str) -> NoReturn:
    """There is no TensorRT: always an `UnsupportedError`, which names what to use."""
    _no_tensorrt("write_int8_calibration")


def cache_int8_calibration() -> NoReturn:
    """There is no TensorRT: always an `UnsupportedError`, which names what to use."""
    _no_tensorrt("cache_int8_calibration")


def _no_tensorrt(name: str) -> NoReturn:
    _refuse(
        f"flow.tensorrt.{name}",
        "calibration for TensorRT, to which no job is compiled",
        "kernels of plugins",
        "flow.quantization.moving_average_min_maxObserver observes ranges in training",
    )


def get_include() -> NoReturn:
    """There are no C++ headers: always an `UnsupportedError`, which names what to use."""
    _nothing_to_link("get_include")


def get_lib() -> NoReturn:
    """There is no C++ library: always an `UnsupportedError`, which names what to use."""
    _nothing_to_link("get_lib")


def get_compile_flags() -> NoReturn:
    """There are no C++ headers: always an `UnsupportedError`, which names what to use."""
    _nothing_to_link("get_compile_flags")


def get_link_flags() -> NoReturn:
    """There is no C++ library: always an `UnsupportedError`, which names what to use."""
    _nothing_to_link("get_link_flags")


def _nothing_to_link(name: str) -> NoReturn:
    _refuse(
        f"flow.sysconfig.{name}",
        "a build of an op in C++ against OneFlow's headers",
        "ops and kernels of plugins",
        PLUGIN,
    )


def init_worker(scp_binary: bool = True, use_uuid: bool = True, ssh_port: int = 22) -> None:
    """Nothing: the script itself is started on every machine, by hand or by a launcher.

    Raises:
        UnsupportedError: the session has several machines, and this process is the only one:
            others are not started by copying programs to their machines.
    """
    _one_machine("init_worker")


def delete_worker(ssh_port: int = 22) -> None:
    """Nothing, or an error, as `init_worker`."""
    _one_machine("delete_worker")


def _one_machine(name: str) -> None:
    session = default_session()
    machines = max(session.resources.machine_num, _named_machines())
    if machines > 1 and session.world is None:
        found = f"{machines} machines"
        _refuse(f"flow.deprecated.{name}", found, "processes started by a launcher", LAUNCHER)


def _named_machines() -> int:
    """How many machines ``flow.env.machine`` was given."""
    given = default_session().resources.others.get("env.machine", ())
    first = given[0] if len(given) == 1 else given
    return len(first) if isinstance(first, list | tuple) else 1


def dynamic_binary_split(
    x: object, base_shift: int = 2, out_num: int = 2, name: str | None = None
) -> NoReturn:
    """Blobs are sent in as many bytes as they have: always an `UnsupportedError` that says so."""
    _sent_whole("dynamic_binary_split", x)


def dynamic_binary_concat(
    input_blob_list: object, source_blob: object, source_sbp: str = "S:0", name: str | None = None
) -> NoReturn:
    """Blobs are sent in as many bytes as they have: always an `UnsupportedError` that says so."""
    _sent_whole("dynamic_binary_concat", source_blob)


def _sent_whole(name: str, blob: object) -> NoReturn:
    _refuse(
        f"flow.experimental.{name}",
        f"{blob!r:.80} to be sent in pieces of two's powers",
        "blobs as they are, which are sent in as many bytes as they have",
        "use the blob itself on the other devices",
    )
