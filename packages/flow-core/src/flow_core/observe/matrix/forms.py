"""The forms of a job that ``flow verify --matrix`` compiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from flow_core.compiler.lower.tasks import lower
from flow_core.compiler.request import Compiled
from flow_core.frontend.config.function_config import HALF, MIXED
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.session.session import Session
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.frontend.trace.move import device_count, moved
from flow_core.ir.graph import GraphBuilder, Op
from flow_core.plan import Plan
from flow_core.plugins.records import Origin
from flow_core.plugins.registry import kernel_key
from flow_core.sharding.sbp import B, Split

AUTO, DATA, MODEL, ZERO = "auto", "data", "model", "zero"
LAYOUTS = {
    AUTO: "as the program and the selector choose",
    DATA: "inputs split by rows, every device has all weights",
    MODEL: "weights split along their largest axis",
    ZERO: "weights and optimizer states in parts (distributed_split)",
}
PASSES = ("all", "none")
"""All passes; none of the passes on the physical graph, without reuse of memory."""
PRECISIONS = ("float32", "bfloat16", "float16")
CORE = "flow-core"


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a job."""

    layout: str  # a key of `LAYOUTS`
    devices: int
    passes: str  # an element of `PASSES`
    backend: str  # "flow-core" for its kernels alone, or the packages whose kernels are also used
    precision: str  # an element of `PRECISIONS`; half types by mixed precision


def forms(devices: int, train: bool, backends: Sequence[str]) -> Iterator[Form]:
    """Yield all forms on up to a number of devices; on one device, there is one layout.

    Forms that differ in their passes follow each other: a job is compiled once for them.
    """
    rows = product(range(1, devices + 1), LAYOUTS, backends, PRECISIONS, PASSES)
    for count, layout, backend, precision, passes in rows:
        if (count > 1 or layout == AUTO) and (train or layout != ZERO):
            yield Form(layout, count, passes, backend, precision)


def kernel_packages(session: Session) -> dict[str, Origin]:
    """Return the packages other than flow-core that have kernels for ops of another package."""
    registry, found = session.registry, {}
    for (op, _), specs in registry.all_kernels.items():
        declared = registry.origins.get(("ops", op))  # None for kernels of several ops
        for spec in specs:
            origin = registry.origins["kernels", kernel_key(spec)]
            own = (CORE, "", declared.distribution if declared else CORE)
            if origin.distribution not in own:
                found[origin.distribution] = origin
    return dict(sorted(found.items()))


def backends(session: Session) -> dict[str, tuple[str, ...]]:
    """Return the packages to disable for each backend, by its name."""
    others = tuple(kernel_packages(session))
    return {CORE: others, **({"+".join(others): ()} if others else {})}


def compiled(job: AnyJob, form: Form) -> Compiled:
    """Compile a job in a form; the default session must be new."""
    build = job.prepare().build
    build.config = build.config.copy()
    build.config.share_replicas(False)  # each device computes what is compared
    if form.precision != "float32":
        getattr(build.config, MIXED)(True)
        getattr(build.config, HALF)(form.precision)
    else:
        getattr(build.config, MIXED)(False)
    if form.devices != device_count(build):
        build.builder = moved(build, form.devices).builder
    if form.layout == ZERO:
        build.config.optimizer_placement_optimization_mode("distributed_split")
        build.config.optimizer_placement_optimization_threshold(1)
    if form.layout in (DATA, MODEL):
        build.builder = _hinted(build, form)
    return job.compile()


def plan_of(job: AnyJob, found: Compiled, form: Form) -> Plan:
    """Return the plan of a compiled job with the passes of a form."""
    return found.plan if form.passes == "all" else _plain(job, found)


def _hinted(build: JobBuild, form: Form) -> GraphBuilder:
    graph = build.builder.build()
    ops = {name: _with_hint(op, graph.types[name][0].shape if graph.types[name] else (), form)
           for name, op in graph.ops.items()}  # fmt: skip
    return GraphBuilder(replace(graph, ops=ops))


def _with_hint(op: Op, shape: tuple[int, ...], form: Form) -> Op:
    if op.placement.size != form.devices or len(op.placement.hierarchy) != 1:
        return op
    sbp: Any = None
    if op.type == "input" and shape and shape[0] >= form.devices:
        sbp = Split(0)
    elif op.type == "variable" and op.attrs["trainable"]:
        sbp = B
        if form.layout == MODEL and len(shape) > 1 and max(shape) >= form.devices:
            sbp = Split(shape.index(max(shape)))
    if sbp is None or (form.layout == MODEL and op.type == "input"):
        return op
    return replace(op, sbp=((sbp,),))


def _plain(job: AnyJob, found: Compiled) -> Plan:
    """Return the plan without passes on the physical graph, and without reuse of memory."""
    options = replace(found.request.options, inplace=False, reuse=False)
    registry, physical = found.request.registry, found.physical
    plan = lower(physical.graph, registry, found.inputs, job.name, options)
    shards = {name: (s.variable, s.region) for name, s in physical.shards.items()}
    return replace(plan, shards=shards, micro_batches=found.plan.micro_batches)
