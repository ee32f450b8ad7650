"""The changes of a job that may lower the memory that it needs.

One table serves the compiler, which changes a job that does not fit, ``flow fit`` and
``flow plan --advise``.  A form of a job has a level of each kind of change; level 0 is the job as
it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isqrt
from typing import Any

from flow_core.frontend.config.function_config import (
    MEMORY_SEARCH,
    MICRO_BATCHES,
    optimizer_placement,
)
from flow_core.frontend.job.forms.segments import segments
from flow_core.frontend.job.forms.stages import PIPELINE_STAGES, can_be_divided
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.passes.optimizer_placement import MODES

OPTIMIZER_MODE = "optimizer_placement_optimization_mode"
OPTIMIZER_AHEAD = "optimizer_placement_optimization_ahead"

Make = Callable[[JobBuild], JobBuild | None]
"""A function that returns a changed job; None if the job has the form already or cannot have it."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job."""

    name: str  # in words
    text: str  # what to write in the program
    make: Make = lambda build: build
    setting: tuple[str, Any] | None = None  # that requests the change, and its value
    # Whether the change only adds work to the form before it, which is then a lower bound on its
    # time.
    adds_work: bool = True
    # The factors on the price of memory with which layouts are chosen, of which the first counts
    # whose layouts fit.
    prices: tuple[float, ...] = (1.0,)
    micro_batches: int = 1  # the factor on their number
    stages: int = 1  # of a pipeline

    @property
    def may_be_faster(self) -> bool:
        """Whether the change may make a job faster that fits without it."""
        return not self.adds_work and self.prices == (1.0,)


@dataclass(frozen=True, slots=True)
class Kind:
    """Changes of which a form has one, from the mildest to the strongest."""

    name: str  # in words
    levels: tuple[Change, ...]
    keeps_bits: bool  # whether the results of a step have the same bits as without the change
    adds_up: bool = False  # whether a level includes those before it

    def changed(self, build: JobBuild, level: int) -> tuple[JobBuild, list[Change]] | None:
        """Return a job at a level, with the changes; None if the level is not applicable."""
        made: list[Change] = []
        for change in self.levels[:level] if self.adds_up else self._own(level):
            found = change.make(build)
            if found is not None:
                build = found
                made.append(change)
            elif change is self.levels[level - 1]:
                return None
        return build, made

    def _own(self, level: int) -> Sequence[Change]:
        return self.levels[level - 1 : level] if level else ()


def _set(build: JobBuild, values: Mapping[str, object]) -> JobBuild:
    """Return a copy of the job with changed settings."""
    changed = copy.copy(build)
    changed.config = build.config.copy()
    for name, value in values.items():
        getattr(changed.config, name)(value)
    return changed


def on_several_devices(build: JobBuild) -> bool:
    """Return whether some op of a job runs on several devices."""
    return any(op.placement.size > 1 for op in build.builder.ops.values())


def _selected_by_cost(build: JobBuild) -> JobBuild | None:
    greedy = build.config.get("sbp_selector") == "greedy" and on_several_devices(build)
    return _set(build, {"sbp_selector": "optimal"}) if greedy else None


def _selected_for_memory(build: JobBuild) -> JobBuild | None:
    return (_selected_by_cost(build) or build) if on_several_devices(build) else None


def _on_grids(build: JobBuild) -> JobBuild | None:
    ops = build.builder.ops.values()
    given = any(len(op.placement.hierarchy) > 1 or "hierarchy" in op.attrs for op in ops)
    most = max((op.placement.size for op in ops), default=1)
    divides = any(most % n == 0 for n in range(2, isqrt(most) + 1))
    if given or not divides or build.config.get("sbp_selector") == "grids":
        return None
    return _set(build, {"sbp_selector": "grids"})


def _sharded_states(mode: str) -> Make:
    """Return a change that gives weights and optimizer states owners."""

    def make(build: JobBuild) -> JobBuild | None:
        if build.kind != "train" or optimizer_placement(build.config) is not None:
            return None
        return _set(build, {OPTIMIZER_MODE: mode}) if on_several_devices(build) else None

    return make


def _gathered_by_layer(build: JobBuild) -> JobBuild | None:
    """Return a job with weights in parts that frees gathered weights after their use."""
    sharded = optimizer_placement(build.config) if build.kind == "train" else None
    if sharded is None or sharded.ahead is not None:
        return None
    return _set(build, {OPTIMIZER_AHEAD: 1})


def _recomputed(part: float) -> Make:
    """Return a change that recomputes a part of the segments of the forward pass."""

    def make(build: JobBuild) -> JobBuild | None:
        if not build.forward or build.segments:
            return None
        ops, types = build.builder.ops, build.builder.types
        blocks = [
            [*names]  # of one stage of a pipeline
            for block in segments(ops, types, build.forward)
            for _, names in groupby(block, lambda name: ops[name].placement)
        ]
        changed = copy.copy(build)
        chosen = blocks[: round(part * len(blocks))]
        changed.segments = {-1 - i: block for i, block in enumerate(chosen)}
        return changed if chosen else None

    return make


def _in_stages(count: int) -> Make:
    """Return a function that returns a job, which will be traced again, if it can be divided."""

    def make(build: JobBuild) -> JobBuild | None:
        given = build.config.get(PIPELINE_STAGES) is not None
        return None if given or not can_be_divided(build, count) else build

    return make


def _trains(build: JobBuild) -> JobBuild | None:
    """Return the job, which will be traced again for micro-batches, if it trains."""
    return build if build.kind == "train" else None


def _with_setting(name: str, setting: str, value: Any, make: Make, **more: Any) -> Change:
    return Change(
        name, f"function_config.{setting}({_text(value)})", make, (setting, value), **more
    )


def _text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


STAGE_COUNTS = (2, 4, 8)
"""The numbers of stages that are tried."""
STAGES = Kind(
    "stages of a pipeline",
    tuple(
        _with_setting(
            f"{count} stages",
            PIPELINE_STAGES,
            count,
            _in_stages(count),
            stages=count,
            adds_work=False,
        )
        for count in STAGE_COUNTS
    ),
    keeps_bits=False,
)
GRIDS = Kind(
    "a grid of devices",
    (_with_setting("a grid of devices", "sbp_selector", "grids", _on_grids, adds_work=False),),
    keeps_bits=False,
)
PRICES = (10.0, 100.0, 1e3, 1e4)
"""The factors on the price of memory of layouts for less memory."""
LAYOUTS = Kind(
    "layouts",
    (
        _with_setting(
            "layouts by cost", "sbp_selector", "optimal", _selected_by_cost, adds_work=False
        ),
        Change(
            "layouts chosen for less memory",
            'function_config.sbp_selector("optimal"), and the same limit of memory',
            _selected_for_memory,
            adds_work=False,
            prices=PRICES,
        ),
    ),
    keeps_bits=False,
)
STATES = Kind(
    "states in parts",
    (
        _with_setting(
            "weights and optimizer states in parts",
            OPTIMIZER_MODE,
            MODES[1],
            _sharded_states(MODES[1]),
            adds_work=False,
        ),
        _with_setting(
            "weights gathered layer by layer",
            OPTIMIZER_AHEAD,
            1,
            _gathered_by_layer,
            adds_work=False,
        ),
    ),
    keeps_bits=True,
    adds_up=True,
)
ON_ONE_DEVICE = _with_setting(
    "weights and states on one device each", OPTIMIZER_MODE, MODES[0], _sharded_states(MODES[0])
)
"""A form whose devices need different memory, and the fullest more than with states in parts."""
_SCOPE = "flow.experimental.scope.config(checkpointing=True) around"
RECOMPUTED = Kind(
    "recomputation",
    (
        Change(
            "half of the activations computed again",
            f"{_SCOPE} blocks of the first half of the network",
            _recomputed(0.5),
        ),
        Change("activations computed again", f"{_SCOPE} blocks of the network", _recomputed(1.0)),
    ),
    keeps_bits=True,
)
COUNTS = (2, 4, 8, 16)
"""The factors on the number of micro-batches."""
MICRO = Kind(
    "micro-batches",
    tuple(
        _with_setting(f"{count} micro-batches", MICRO_BATCHES, count, _trains, micro_batches=count)
        for count in COUNTS
    ),
    keeps_bits=False,
)
KINDS = (STAGES, GRIDS, LAYOUTS, STATES, RECOMPUTED, MICRO)
"""The kinds of changes, in the order of the levels of a form."""


def consent(build: JobBuild, kind: Kind) -> str:
    """Return the setting with which the program allows a kind of change; "" if it does already.

    Micro-batches change the rounding of a step and the statistics of batch normalization.  A
    program that names the greedy selector wants its layouts on all devices.
    """
    allowed = build.config.get(MEMORY_SEARCH)
    if allowed == "off" or (kind is MICRO and allowed != "micro_batches"):
        wanted = "micro_batches" if kind is MICRO else "on"
        return f'function_config.{MEMORY_SEARCH}("{wanted}")'
    if kind in (STAGES, GRIDS, LAYOUTS) and build.config.get("sbp_selector") == "greedy":
        return 'function_config.sbp_selector("auto")'
    return ""
