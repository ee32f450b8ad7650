"""Operations that rank 0 performs for all processes: saving, loading and exporting."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import CheckpointError, JobError
from flow_core.device import World


def save_collectively(
    world: World, variables: Mapping[str, Array], save: Callable[[Mapping[str, Array]], None]
) -> None:
    """Write a checkpoint on rank 0, gathering one variable at a time.

    Args:
        variables: arrays by name; reading one is a collective operation that gathers it.
        save: writes a mapping of arrays, in any order.

    Raises:
        CheckpointError: saving failed, or the processes save different names.  The error is raised
            in all processes.
    """
    _check_names(world, variables)
    if world.rank:
        _take_part(world, variables)
        return
    try:
        save(_GatheredVariables(world, variables))
    except BaseException as error:
        _broadcast_message(world, {"error": f"{error}"})
        raise
    _broadcast_message(world, {})


def _check_names(world: World, variables: Mapping[str, Array]) -> None:
    own = json.dumps(sorted(variables)).encode()
    first, *others = (json.loads(text) for text in world.gather(own, "names in a checkpoint"))
    for rank, names in enumerate(others, 1):
        if names != first:
            odd = min(set(names) ^ set(first))
            raise CheckpointError(
                "saving variables",
                found=f"{odd!r} in process {0 if odd in first else rank} and not in "
                f"{rank if odd in first else 0}",
                allowed="the same names in all processes",
            )


def _take_part(world: World, variables: Mapping[str, Array]) -> None:
    """Take part in gathering each variable that rank 0 reads, until rank 0 has read all."""
    while "name" in (message := _broadcast_message(world, {})):
        _ = variables[message["name"]]
    if "error" in message:
        raise CheckpointError("saving, on rank 0", found=message["error"])


def _broadcast_message(world: World, message: Mapping[str, object]) -> Any:
    """Broadcast a message from rank 0 and return it."""
    return json.loads(world.gather(json.dumps(message).encode(), "a checkpoint")[0])


class _GatheredVariables(Mapping[str, Any]):
    """The arrays of variables on rank 0, each gathered when it is read."""

    def __init__(self, world: World, variables: Mapping[str, Array]) -> None:
        self._world = world
        self._variables = variables

    def __getitem__(self, name: str) -> Array:
        _broadcast_message(self._world, {"name": name})
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def run_on_rank_zero(world: World, action: Callable[[], None], attempted: str) -> None:
    """Run an action on rank 0, while the other processes wait.

    Raises:
        JobError: the action failed; rank 0 raises the exception of the action itself instead.
    """
    if world.rank:
        message = _broadcast_message(world, {})
        if "error" in message:
            raise JobError(f"{attempted}, on rank 0", found=message["error"])
        return
    try:
        action()
    except BaseException as error:
        _broadcast_message(world, {"error": f"{error}"})
        raise
    _broadcast_message(world, {})


def load_collectively(world: World, load: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
    """Read a checkpoint on rank 0 and broadcast its arrays.

    Raises `CheckpointError` if loading failed; all processes raise it.
    """
    if world.rank:
        message = _broadcast_message(world, {})
        if "error" in message:
            raise CheckpointError("loading, on rank 0", found=message["error"])
        found = {n: np.empty(shape, as_dtype(dtype).numpy) for n, shape, dtype in message["arrays"]}
    else:
        found = _loaded(world, load)
    for name, array in found.items():
        world.broadcast(array, 0, f"variable {name!r}")
    return found


def _loaded(world: World, load: Callable[[], Mapping[str, Array]]) -> dict[str, Array]:
    try:
        found = {name: np.asarray(array, order="C") for name, array in load().items()}
        rows = [[name, list(x.shape), as_dtype(x.dtype).name] for name, x in found.items()]
    except BaseException as error:
        _broadcast_message(world, {"error": f"{error}"})
        raise
    _broadcast_message(world, {"arrays": rows})
    return found
