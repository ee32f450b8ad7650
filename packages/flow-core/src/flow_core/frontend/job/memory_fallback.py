"""Fallback for a job that does not fit into its devices' memory.

The SBP selection may trade time for memory: it is repeated with a larger price of memory in the
cost model until the plan fits.  If that is not allowed or no plan fits, the job is refused; the
error lists variants of the job that would fit, which are compiled for that purpose, but not run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isqrt

from flow_core.base.errors import FlowError, OutOfMemoryError
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.config.function_config import optimizer_placement
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.trace.job_build import JobBuild

PRICES = (10.0, 100.0, 1e3, 1e4)
"""The factors on the price of memory, in the order in which they are tried."""

MakeRequest = Callable[[JobBuild], CompileRequest]
Compile = Callable[[CompileRequest], Compiled]


def compile_within_memory(build: JobBuild, request: MakeRequest, compiled: Compile) -> Compiled:
    """Compile a job to a plan that fits into memory.

    Args:
        build: the job.
        request: returns the request to compile a job or a variant of it.
        compiled: compiles a request of the job, or finds its plan.

    Raises:
        OutOfMemoryError: no plan fits; the error names variants of the job that would fit.
    """
    try:
        return cheapest(request(build), compiled)
    except OutOfMemoryError as error:
        raise error.with_context(
            hint=_advice(error, tuple(_compiled_variants(build, request)))
        ) from None


def cheapest(request: CompileRequest, compiled: Compile = compile_with_fallback) -> Compiled:
    """Return the first plan that fits, trying increasing prices of memory.

    Raises:
        OutOfMemoryError: no plan fits.
    """
    try:
        return compiled(request)
    except OutOfMemoryError as first:
        distributed = any(op.placement.size > 1 for op in request.graph.ops.values())
        if request.selector == "greedy" or not distributed:
            raise
        least = first
        for price in PRICES:
            try:
                return compiled(replace(request, memory_price=price))
            except OutOfMemoryError as error:
                least = min(least, error, key=lambda e: e.nbytes)
        raise least from None


def _on_several_devices(build: JobBuild) -> bool:
    return any(op.placement.size > 1 for op in build.builder.ops.values())


# --------------------------------------------------------------------------------- variants


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job that may lower the memory that it needs.

    Attributes:
        name: a short name.
        text: what to change in the program.
        apply: returns the changed job, or None if the job is in that form already or cannot be.
    """

    name: str
    text: str
    apply: Callable[[JobBuild], JobBuild | None]


def _set(build: JobBuild, values: Mapping[str, object]) -> JobBuild:
    """Return a copy of the job with changed settings."""
    changed = copy.copy(build)
    changed.config = build.config.copy()
    for name, value in values.items():
        getattr(changed.config, name)(value)
    return changed


OPTIMIZER_MODE = "optimizer_placement_optimization_mode"
OPTIMIZER_AHEAD = "optimizer_placement_optimization_ahead"


def _sharded_states(build: JobBuild) -> JobBuild | None:
    if build.kind != "train" or optimizer_placement(build.config) is not None:
        return None
    return (
        _set(build, {OPTIMIZER_MODE: "distributed_split"}) if _on_several_devices(build) else None
    )


def _gathered_by_layer(build: JobBuild) -> JobBuild | None:
    """Return a job with weights in parts that frees gathered weights after their use."""
    sharded = optimizer_placement(build.config) if build.kind == "train" else None
    if sharded is None or sharded.ahead is not None:
        return None
    return _set(build, {OPTIMIZER_AHEAD: 1})


def _selected_by_cost(build: JobBuild) -> JobBuild | None:
    greedy = build.config.get("sbp_selector") == "greedy" and _on_several_devices(build)
    return _set(build, {"sbp_selector": "optimal"}) if greedy else None


def _recomputed(build: JobBuild) -> JobBuild | None:
    """Return the job with its n forward ops recomputed in sqrt(n) segments of sqrt(n) ops."""
    if not build.forward or build.segments:
        return None
    ops = build.builder.ops
    names = [n for n in ops if n in build.forward and ops[n].inputs]
    size = max(2, isqrt(len(names)))
    changed = copy.copy(build)
    blocks = (names[at : at + size] for at in range(0, len(names), size))
    changed.segments = {-1 - i: block for i, block in enumerate(blocks)}
    return changed


LAYOUTS = Change("layouts by cost", 'function_config.sbp_selector("optimal")', _selected_by_cost)
SHARDED = Change(
    "weights and optimizer states in parts",
    'function_config.optimizer_placement_optimization_mode("distributed_split")',
    _sharded_states,
)
GATHERED = Change(
    "weights gathered layer by layer",
    "function_config.optimizer_placement_optimization_ahead(1)",
    _gathered_by_layer,
)
RECOMPUTED = Change(
    "activations computed again",
    "flow.experimental.scope.config(checkpointing=True) around blocks of the network",
    _recomputed,
)
CHANGES = (LAYOUTS, SHARDED, GATHERED, RECOMPUTED)
VARIANTS = ((LAYOUTS,), (SHARDED,), (SHARDED, GATHERED), (RECOMPUTED,), (SHARDED, RECOMPUTED))
"""The changes that are tried together for a job that does not fit."""


def changed_job(build: JobBuild, changes: Iterable[Change]) -> JobBuild | None:
    """Return a job with several changes, or None if one of them is not applicable."""
    for change in changes:
        changed = change.apply(build)
        if changed is None:
            return None
        build = changed
    return build


def _compiled_variants(build: JobBuild, request: MakeRequest) -> Iterator[tuple[str, int | None]]:
    """Compile the variants, and yield for each the bytes that it needs (None if it fits)."""
    for changes in VARIANTS:
        changed = changed_job(build, changes)
        if changed is not None:
            text = " and ".join(change.name for change in changes)
            if len(changes) == 1:
                text += f": {changes[0].text}"
            try:
                cheapest(request(changed))
            except OutOfMemoryError as error:
                yield text, error.nbytes
            except FlowError:
                continue  # the variant is not applicable to this job
            else:
                yield text, None


def _advice(error: OutOfMemoryError, tried: tuple[tuple[str, int | None], ...]) -> str:
    fits = [text for text, needed in tried if needed is None]
    others = [f"{text}: {needed:,} bytes" for text, needed in tried if needed is not None]
    lines = "".join(f"\n           {text}" for text in (*fits, *others))
    general = (
        "make the batch smaller, feed it in micro-batches "
        "(function_config.train.num_gradient_accumulation_steps), place ops on more devices, or "
        "compare more forms: flow fit SCRIPT.PY --memory SIZE"
    )
    if fits:
        count = f"{'this form of the job fits' if len(fits) == 1 else f'{len(fits)} forms fit'}"
        return f"{count}, listed first of those tried; or {general}:{lines}"
    return f"no other form that was tried fits; {general}{':' if others else ''}{lines}"
