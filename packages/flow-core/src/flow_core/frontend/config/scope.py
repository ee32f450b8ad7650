"""Scopes: contexts that set the placement, names and options of the ops traced in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from flow_core.base.errors import GraphError, OutsideJobError, shown, user_line
from flow_core.sharding.topology import Placement


@dataclass(frozen=True, slots=True)
class ParallelDesc:
    """The devices of a scope, with OneFlow's attributes."""

    placement: Placement

    @property
    def device_tag(self) -> str:
        """The device type."""
        return self.placement.device_type

    @property
    def parallel_num(self) -> int:
        """The number of devices."""
        return self.placement.size

    @property
    def machine_id2device_id_list(self) -> dict[int, list[int]]:
        """The devices of each machine."""
        found: dict[int, list[int]] = {}
        for machine, device in self.placement.devices:
            found.setdefault(machine, []).append(device)
        return found


@dataclass(frozen=True, slots=True)
class ParallelConf:
    """The devices of a blob, with the fields of OneFlow's message."""

    placement: Placement

    def device_tag(self) -> str:
        """Return the device type."""
        return self.placement.device_type

    def device_name(self) -> list[str]:
        """Return the devices, such as ``["0:0", "0:1"]``."""
        return [f"{machine}:{device}" for machine, device in self.placement.devices]


@dataclass(frozen=True, slots=True)
class Scope:
    """The options in force at a point of a program."""

    placement: Placement | None = None  # devices of new ops, None for the session's default
    names: tuple[str, ...] = ()  # name scopes, outermost first
    mirrored: bool = False  # whether the mirrored view is on
    checkpointing: int = 0  # the segment whose activations the backward pass recomputes, or 0
    # How many successive values of each variable of a train job are kept; the job reads the oldest
    # of them.  0 keeps the current value only.
    stale: int = 0
    reuse: bool = False  # whether layers use variables that the job has already
    default: Placement | None = None  # the session's default devices, None outside of jobs

    @property
    def device_parallel_desc_symbol(self) -> ParallelDesc:
        """The devices in force, under OneFlow's name."""
        placement = self.placement or self.default
        if placement is None:
            raise outside("current_scope")
        return ParallelDesc(placement)

    @property
    def prefix(self) -> str:
        """The prefix that OneFlow adds to the names of ops and variables in this scope."""
        return "".join(f"{name}-" for name in self.names)


def outside(attempted: str) -> OutsideJobError:
    """Return the error for a call that needs a job being traced but is outside of one."""
    return OutsideJobError.at_caller(
        attempted,
        found="no job function being traced",
        allowed="inside a function decorated with @flow.global_function",
        hint="make the call inside a job; outside, use the arrays that jobs return, not blobs",
    )


_OUTERMOST = Scope()
_segments = count(1)
_current: ContextVar[Scope] = ContextVar("flow_scope", default=_OUTERMOST)


def current_scope() -> Scope:
    """Return the scope in force.

    Returns:
        The scope.

    Example:
        >>> flow.current_scope().mirrored
        False
    """
    return _current.get()


@contextmanager
def enter(scope: Scope) -> Iterator[Scope]:
    """Enter a scope for a ``with`` block."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def placement(
    device_tag: str, machine_device_ids: str | Sequence[str], hierarchy: Sequence[int] | None = None
) -> Entering:
    """Place the ops of a ``with`` block on devices.

    Args:
        device_tag: device type, "cpu", "gpu" or one that a plugin provides.
        machine_device_ids: machine and device numbers, such as ``"0:0"``, ``"0:0-3"`` or
            ``["0:0-1", "1:0-1"]``.
        hierarchy: shape of the device grid, for n-D SBP.

    Returns:
        A context manager.

    Raises:
        GraphError: the ids are invalid or repeated, or the size of the grid is not the number of
            devices.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        ...     with flow.scope.placement("cpu", "0:0-1"):
        ...         return 2 * x
        >>> job([1, 2, 3, 4])
        array([2., 4., 6., 8.], dtype=float32)
        >>> sorted({str(task.device) for task in job.plan().tasks})
        ['cpu:0:0', 'cpu:0:1']
    """
    if not isinstance(device_tag, str) or not device_tag:
        raise GraphError.at_caller(
            "making a placement",
            found=f"the device type {shown(device_tag)}",
            allowed='"cpu", "gpu", or another type that a plugin provides',
        )
    try:
        found = Placement.parse(device_tag, machine_device_ids, hierarchy)
    except GraphError as error:
        raise error.with_context(at=user_line(2)) from None
    return Entering(placement=found)


def name_scope(name: str) -> Entering:
    """Prefix the names of ops and variables of a ``with`` block with ``name-``.

    Args:
        name: the prefix.

    Returns:
        A context manager.

    Example:
        >>> @flow.global_function()
        ... def job() -> tp.Numpy:
        ...     with flow.name_scope("block"):
        ...         return flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        >>> _ = job()
        >>> list(flow.get_all_variables())
        ['block-w']
    """
    if not isinstance(name, str):
        raise GraphError.at_caller("entering a name scope", found=shown(name), allowed="a text")
    return Entering(names=name)


class Entering:
    """A reusable context manager that changes the scope in force."""

    def __init__(
        self,
        placement: Placement | None = None,
        names: str | None = None,
        mirrored: bool | None = None,
        checkpointing: bool | None = None,
        stale: int | None = None,
        reuse: bool | None = None,
    ) -> None:
        self._changes = {
            "placement": placement,
            "mirrored": mirrored,
            "checkpointing": checkpointing,
            "stale": stale,
            "reuse": reuse,
        }
        self._name = names
        self._tokens: list[object] = []

    def __enter__(self) -> Scope:
        now = current_scope()
        changes: dict[str, Any] = {k: v for k, v in self._changes.items() if v is not None}
        if changes.get("checkpointing"):
            changes["checkpointing"] = next(_segments)
        if self._name is not None:
            changes["names"] = (*now.names, self._name)
        scope = replace(now, **changes)
        self._tokens.append(_current.set(scope))
        return scope

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())  # type: ignore[arg-type]  # tokens of this variable


def consistent_view() -> Entering:
    """Return the scope of the consistent view: one logical program on all devices (the default).

    Returns:
        A scope, for ``default_logical_view`` and ``with``.

    Example:
        >>> config = flow.function_config()
        >>> config.default_logical_view(flow.scope.consistent_view())
    """
    return Entering(mirrored=False)


def mirrored_view() -> Entering:
    """Return the scope of the mirrored view: the same program on each device.

    Returns:
        A scope, for ``default_logical_view`` and ``with``.

    Example:
        >>> config = flow.function_config()
        >>> config.default_logical_view(flow.scope.mirrored_view())
        >>> @flow.global_function(function_config=config)
        ... def job(x: tp.ListNumpy.Placeholder((4,))) -> tp.ListNumpy:
        ...     return 2 * x
        >>> job([np.ones(3)])
        [array([2., 2., 2.], dtype=float32)]
    """
    return Entering(mirrored=True)


def reuse_variables() -> Entering:
    """Share weights: layers of a ``with`` block use the variables that the job has by their names.

    A layer whose variables the job does not have yet creates them.

    Returns:
        A context manager.

    Raises:
        InferenceError: a layer of the block has no name.

    Example:
        >>> def tower(x):
        ...     with flow.scope.reuse_variables():
        ...         return flow.layers.dense(x, 2, name="tower")
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((1, 3)), y: tp.Numpy.Placeholder((1, 3))) -> tp.Numpy:
        ...     return tower(x) - tower(y)
        >>> _ = job(np.ones((1, 3)), np.ones((1, 3)))
        >>> list(flow.get_all_variables())
        ['tower-bias', 'tower-weight']
    """
    return Entering(reuse=True)


def scope_config(
    checkpointing: bool | None = None,
    ssp_num_stages: int | None = None,
    ssp_stage_id: int | None = None,
    pipeline_stage_id_hint: int | None = None,
) -> Entering:
    """Set options of the ops in a ``with`` block, as ``flow.experimental.scope.config``.

    Args:
        checkpointing: whether the ``with`` block is a segment whose activations the backward pass
            recomputes from the segment's inputs.  Values that leave the segment are kept.
        ssp_num_stages, ssp_stage_id: in jobs with ``function_config.enable_ssp(True)``, the block
            uses the values that its variables had ``ssp_num_stages - ssp_stage_id - 1`` steps
            before.
        pipeline_stage_id_hint: accepted for compatibility; the placements of ops determine the
            pipeline stages.

    Returns:
        A context manager.

    Example:
        >>> @flow.global_function()
        ... def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        ...     with flow.scope.config(pipeline_stage_id_hint=0):
        ...         return 2 * x
        >>> job([1, 2])
        array([2., 4.], dtype=float32)
    """
    for given in (ssp_num_stages, ssp_stage_id):
        if given is not None and not isinstance(given, int):
            raise GraphError.at_caller("scope.config", found=shown(given), allowed="a number")
    stale = None if ssp_num_stages is None else ssp_num_stages - (ssp_stage_id or 0)
    return Entering(checkpointing=checkpointing, stale=stale)
