"""Functions of OneFlow 0.4 about processes, the build, and ranges of the host to profile.

Args:
    ssh_port, run_dir: without effect.
    dtype: the element type of the variable.
    range_name: the name of the range.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.array.initializers import zeros_initializer
from flow_core.api.compat.unsupported import delete_worker
from flow_core.api.session.env import ctrl_port as set_ctrl_port
from flow_core.api.session.env import machine
from flow_core.base.dtypes import DType, float32
from flow_core.base.errors import ConfigError
from flow_core.frontend.session.session import default_session
from flow_core.ir.initializers import Initializer
from flow_core.plugins.specs import Available

__all__ = [
    "delete_worker_by_bootstrap", "delete_worker_of_multi_process", "empty_initializer",
    "get_rank", "get_world_size", "has_rpc_backend_grpc", "has_rpc_backend_local",
    "init_bootstrap_confs", "range_pop", "range_push", "with_cuda", "with_xla",
]  # fmt: skip


def get_rank() -> int:
    """Return the rank of this process among those of the program.

    Returns: A number that is 0 for a single process.

    >>> get_rank()
    0
    """
    world = default_session().world
    return 0 if world is None else world.rank


def get_world_size() -> int:
    """Return the number of processes of the program.

    Returns: A number that is 1 for a single process.

    >>> get_world_size()
    1
    """
    world = default_session().world
    return 1 if world is None else world.size


def init_bootstrap_confs(
    node_list: str | Sequence[str],
    master_port: int,
    world_size: int = 0,
    ctrl_port: int = -1,
    node_size: int = -1,
    num_process_per_node: int = -1,
) -> None:
    """Set the machines of the program, as `machine` does.

    Args:
        node_list: addresses of the machines in the order of ranks.
        master_port: the port on which the first machine listens for the others.
        world_size: number of processes; 0 for one per machine.  A launcher starts several
            processes per machine.
        ctrl_port, node_size, num_process_per_node: have no effect.

    Raises:
        ConfigError: the number of processes is no multiple of that of machines, or the machines are
            invalid.
    """
    nodes = [node_list] if isinstance(node_list, str) else list(node_list)
    if world_size % max(len(nodes), 1):
        raise ConfigError.at_caller(
            "env.init_bootstrap_confs",
            found=f"world_size={world_size} for {len(nodes)} machines",
            allowed="a multiple of the number of machines",
        )
    machine(*nodes)
    set_ctrl_port(master_port)


def delete_worker_by_bootstrap(ssh_port: int = 22) -> None:
    """Do the same as `delete_worker`."""
    delete_worker(ssh_port)


def delete_worker_of_multi_process(run_dir: str) -> None:
    """Do nothing: processes have no folders of their own."""


def empty_initializer(dtype: DType = float32) -> Initializer:
    """Return an initializer for values that the program overwrites; here, they are zeros."""
    return zeros_initializer(dtype)


def has_rpc_backend_grpc() -> bool:
    """Return False: processes do not communicate through gRPC."""
    return False


def has_rpc_backend_local() -> bool:
    """Return True: a program can run in a single process, without communication."""
    return True


def with_cuda() -> bool:
    """Return whether GPUs, real or emulated, are available."""
    return isinstance(default_session().registry.probe("gpu"), Available)


def with_xla() -> bool:
    """Return False: XLA is not used."""
    return False


_ranges: list[str] = []


def range_push(range_name: str) -> None:
    """Begin a range of the host program; ranges have no effect on measured timelines."""
    _ranges.append(range_name)


def range_pop() -> None:
    """End the innermost range.

    Raises: ConfigError: no range has begun.
    """
    if not _ranges:
        raise ConfigError.at_caller(
            "flow.profiler.range_pop",
            found="no range",
            allowed="one call after each flow.profiler.range_push(name)",
        )
    _ranges.pop()
