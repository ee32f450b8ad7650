"""From a job function to an executable: trace, differentiate, run the passes, lower, bind."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flow_core.base.errors import JobError, SourceLine
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.lower.physical_graph import Physical, to_physical
from flow_core.compiler.lower.tasks import lower
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.compiler.reshard.ledger import BoxingEntry, completed
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.reshard.plugin_steps import Ways
from flow_core.compiler.select import Problem, Selector
from flow_core.frontend.config.function_config import (
    HALF,
    MICRO_BATCHES,
    MIXED,
    cudnn_options,
    indexed_tables,
    micro_batches,
    optimizer_placement,
    quantization,
)
from flow_core.frontend.config.precision import half_type
from flow_core.frontend.job.config_training import configured_training
from flow_core.frontend.job.memory_fallback import fitted
from flow_core.frontend.job.replica_sharing import shared_by_devices, shared_copies
from flow_core.frontend.job.train import TrainVariable, build_training
from flow_core.frontend.session.variables import VariableInfo
from flow_core.frontend.trace.job_build import JobBuild, TrainRequest, train_request
from flow_core.ir.graph import Attrs, Graph, GraphBuilder, Value, verify
from flow_core.ops.build import Emitter
from flow_core.passes.base import Pass, PassContext, PassTiming, Pipeline
from flow_core.passes.bucket_all_reduces import FUSIBLE
from flow_core.passes.checkpointing import Checkpointing
from flow_core.passes.gradient_accumulation import GradientAccumulation, micro_inputs
from flow_core.passes.indexed_slices import IndexedSlices
from flow_core.passes.mixed_precision import MixedPrecision
from flow_core.passes.optimizer_placement import Owned, SharedPlacement, owners
from flow_core.passes.split_norms import SplitNorms, takes_apart
from flow_core.plan import Plan, Transfer
from flow_core.plugins.specs import OpSpec, load
from flow_core.sharding.sbp import B
from flow_core.sharding.topology import Device, Placement

TENSOR_FLOAT_32 = "enable_tensor_float_32_compute"

STEP_VARIABLE = "System-Train-TrainStep-{job}"
"""Name under which a train job counts its steps, as OneFlow's checkpoints have it."""


@dataclass(slots=True)
class Compiled:
    """What compilation gives, besides the plan: material for reports.

    Attributes:
        logical: the graph as traced and differentiated.
        spread: the logical graph after its passes.
        graph: the graph after all passes, with an op per device.
        plan: the physical plan.
        timings: time per pass and stage.
        physical: the graph with an op per device before its passes, and what is known about it.
        inputs: names of the ``input`` ops in the order in which they are fed, micro-batch by
            micro-batch.
    """

    logical: Graph
    spread: Graph
    graph: Graph
    plan: Plan
    timings: list[PassTiming]
    physical: Physical
    inputs: tuple[str, ...]

    @property
    def layouts(self) -> Mapping[Value, TensorLayout]:
        """Layouts of the logical values, when there are several devices."""
        return self.physical.layouts


def complete(
    build: JobBuild, line: SourceLine | None, returned: Iterable[Value]
) -> dict[Value, Value]:
    """Adds what is not in a job's function; gives gradients of watched values.

    Args:
        build: the job as its function has made it.
        line: where the function is.
        returned: what it has returned.
    """
    watched = [part for w in build.watches if not w.gradient for part in w.blob.parts]
    seen = tuple(dict.fromkeys((*returned, *watched)))
    if build.kind == "train":
        return _add_training(build, line, seen)
    _quantize(build, seen)
    _declare_states(build, line)
    return {}


def _quantize(build: JobBuild, seen: tuple[Value, ...]) -> None:
    """Rounds what int8 kernels would read and write, where the job asks for it."""
    asked = quantization(build.config, _raw_step(build).op if build.kind == "train" else None)
    if asked is None:
        return
    before = replace(build.builder.build(), results=seen)
    graph = asked.apply(before, PassContext(build.session.registry.ops))
    build.rounded = dict(zip(seen, graph.results, strict=True))
    build.builder = GraphBuilder(replace(graph, results=()))
    build.emitter = Emitter(build.builder, build.session.registry.ops)


def _add_training(
    build: JobBuild, line: SourceLine | None, seen: tuple[Value, ...]
) -> dict[Value, Value]:
    """Adds backward pass and updates to a train job; gives gradients of watched values."""
    if build.losses and not build.train_requests:
        options = configured_training(build.config, line)
        build.train_requests.append(train_request(options, build.losses, line))
    if not build.train_requests:
        raise JobError(
            f"compiling job {build.name!r}",
            at=line,
            found='a job of type "train" without an optimizer',
            allowed="flow.optimizer....minimize(loss) inside of it",
            hint='decorate it with type="predict" if it only computes',
        )
    request = build.train_requests[0]
    placement = request.placement or _placement_of(build, request.losses[0])
    _add_step(build, placement)
    _quantize(build, seen)
    build.forward = frozenset(build.builder.ops)
    (step,) = build.emitter.emit("reshape", [_raw_step(build)], {"shape": ()}, placement=placement)
    gradients: dict[Value, Value] = {}
    for request in build.train_requests:
        gradients |= _minimize(build, request, step, placement)
    build.emitter.emit("advance_step", [_raw_step(build)], placement=placement)
    _declare_states(build, line)
    return gradients


def _placement_of(build: JobBuild, value: Value) -> Placement:
    return build.builder.ops[value.op].placement


def _raw_step(build: JobBuild) -> Value:
    return Value(STEP_VARIABLE.format(job=build.name), 0)


def _add_step(build: JobBuild, placement: Placement) -> None:
    """Adds the variable that counts the steps."""
    attrs = {
        "shape": (1,), "dtype": "int64", "initializer": ("constant", 0), "trainable": False
    }  # fmt: skip
    name = _raw_step(build).op
    build.emitter.emit("variable", (), attrs, placement=placement, name=name)


def _minimize(
    build: JobBuild, request: TrainRequest, step: Value, placement: Placement
) -> dict[Value, Value]:
    watched = [part for w in build.watches if w.gradient for part in w.blob.parts]
    gradients: dict[Value, Value] = build_training(
        build.emitter,
        losses=request.losses,
        elements=request.elements,
        optimizer=request.optimizer,
        variables=_train_variables(build),
        step=step,
        placement=placement,
        line=request.line,
        watched=watched,
        job=build.name,
        micro_batches=micro_batches(build.config),
        sums=build.gradient_sums,
    )
    return gradients


def _train_variables(build: JobBuild) -> list[TrainVariable]:
    ops = build.builder.ops
    return [
        TrainVariable(
            name=name,
            value=value,
            type=build.builder.type_of(value),
            trainable=bool(ops[value.op].attrs["trainable"]),
            regularizer=ops[value.op].attrs["regularizer"],
            placement=ops[value.op].placement,
        )
        for name, value in build.variables.items()
    ]


def _declare_states(build: JobBuild, line: SourceLine | None) -> None:
    """Tells the session of the variables that training added: step count, optimizer states."""
    for name, op in build.builder.ops.items():
        if op.type == "variable" and name not in build.variables:
            type_ = build.builder.types[name][0]
            info = VariableInfo(name, type_, Attrs(op.attrs), build.name, line)
            build.session.declare_variable(info)
            build.variables[name] = op.output()


@contextmanager
def uncollected() -> Iterator[None]:
    """No cyclic garbage collection in a ``with`` block.

    Compilation makes many objects that live on and no garbage to speak of: walking them all, again
    and again, would make it slower than linear in the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def compile_graph(
    build: JobBuild,
    results: Sequence[Value],
    inputs: Sequence[str],
    effects: bool = True,
    select: Selector | None = None,
) -> Compiled:
    """The plan of a traced job.

    Args:
        build: the job, backward pass and updates included.
        results: values to fetch at each step.
        inputs: names of the ``input`` ops in the order in which they are fed.
        effects: whether ops run that are there for their effects.
        select: the selector; the one of the job's settings when None.
    """
    session = build.session
    build.builder.results = tuple(results)
    logical = build.builder.build()
    if not effects:
        logical = replace(logical, effects=())
    verify(logical)

    def attempt(changed: JobBuild, memory: float) -> Compiled:
        return _planned(changed, logical, inputs, select, memory)

    found = fitted(build, attempt) if select is None else attempt(build, 1.0)
    _keep_layouts(session, found.spread, found.layouts)
    return found


def _planned(
    build: JobBuild,
    logical: Graph,
    inputs: Sequence[str],
    select: Selector | None,
    memory: float,
) -> Compiled:
    """The plan of a logical graph, with memory at a multiple of its price."""
    session = build.session
    context = PassContext(session.registry.ops, pass_options(build))
    before, after = _pipelines(session)
    before.passes = [*_asked(build), *before.passes]
    spread = before.run(logical, context)
    _require_devices(build, spread)
    _check_requests(build, spread)
    physical, splitting = _timed(
        "to_physical",
        len(spread),
        lambda: to_physical(
            _problem(build, spread, memory),
            select or str(build.config.get("sbp_selector")),
            Ways.of(session.registry),
        ),
    )
    graph = after.run(physical.graph, _with_devices(build, physical, context))
    sharing = shared_by_devices(build, graph, physical)
    parts = micro_batches(build.config, build.kind)
    if parts > 1:
        inputs = micro_inputs(inputs, parts)
    plan, lowering = _timed(
        "lower",
        len(graph),
        lambda: lower(
            graph, session.registry, inputs, build.name, _options(build, physical, sharing)
        ),
    )
    shards = {n: (s.variable, s.region) for n, s in physical.shards.items()}
    physical.ledger = completed(physical.ledger, plan)
    ledger = tuple(map(_transfer, physical.ledger))
    plan = replace(plan, shards=shards, micro_batches=parts, ledger=ledger)
    timings = [*before.timings, splitting, *after.timings, lowering]
    return Compiled(logical, spread, graph, plan, timings, physical, tuple(inputs))


def stages(build: JobBuild, compiled: Compiled) -> Iterator[tuple[str, Graph]]:
    """What compilation went through: the name of each pass, and the graph after it."""
    context = PassContext(build.session.registry.ops, pass_options(build))
    before, after = _pipelines(build.session)
    graph = compiled.logical
    yield "trace", graph
    for item in (*_asked(build), *before.passes):
        graph = item.apply(graph, context)
        yield item.name, graph
    graph = compiled.physical.graph
    yield "to_physical", graph
    context = _with_devices(build, compiled.physical, context)
    for item in after.passes:
        graph = item.apply(graph, context)
        yield item.name, graph


def _with_devices(build: JobBuild, physical: Physical, context: PassContext) -> PassContext:
    """What passes may know of a graph with an op per device, besides."""
    more = {"shared_copies": shared_copies(build, physical), "kernels": kernel_settings(build)}
    return replace(context, options={**context.options, **more})


FUSED_BY_DEFAULT = ("all_reduce",)
"""Of the collectives that may go in buckets, those that do so if a program does not say."""


def pass_options(build: JobBuild) -> dict[str, Any]:
    """What session and job ask of passes."""
    config = build.config
    options = {"math_mode": config.get("math_mode"), "cudnn": cudnn_options(config)}
    return {**bucket_options(build), **options}


def bucket_options(build: JobBuild) -> dict[str, Any]:
    """What session and job say about buckets of exchanges, for the pass that makes them."""
    settings, config = build.session.resources.others, build.config

    def session(name: str, default: Any) -> Any:
        return settings.get(f"collective_boxing.{name}", default)

    joined = tuple(
        name for name in FUSIBLE if session(f"nccl_fusion_{name}", name in FUSED_BY_DEFAULT)
    )
    if not config.get("enable_all_reduce_group"):
        joined = tuple(name for name in joined if name != "all_reduce")
    megabytes = session("nccl_fusion_threshold_mb", 16)
    if config.is_set("all_reduce_group_min_mbyte"):
        megabytes = config.get("all_reduce_group_min_mbyte")
    return {
        "bucket_mb": megabytes,
        "bucket_ops": session("nccl_fusion_max_ops", 64),
        "bucket_collectives": joined if session("enable_fusion", True) else (),
    }


def _transfer(entry: BoxingEntry) -> Transfer:
    """A line of the ledger as the plan has it: per step, so that what runs once costs nothing."""
    links = {} if entry.once else {f"{a}->{b}": n for a, b, n in entry.links}
    return Transfer(
        value=entry.value,
        steps=(entry.hop,),
        source=entry.source,
        target=entry.target,
        nbytes=sum(links.values()),
        seconds=entry.seconds,
        line=entry.line,
        links=links,
        why=entry.why + ("; once, when the plan is loaded" if entry.once else ""),
        alternatives=tuple(dict.fromkeys(map(str, entry.runners_up))),
    )


T = TypeVar("T", Plan, Physical)


def _timed(name: str, before: int, work: Callable[[], T]) -> tuple[T, PassTiming]:
    started = time.perf_counter()
    result = work()
    after = len(result.tasks) if isinstance(result, Plan) else len(result.graph)
    return result, PassTiming(name, before, after, time.perf_counter() - started)


def _problem(build: JobBuild, graph: Graph, memory: float) -> Problem:
    session, seconds = build.session, float(build.config.get("sbp_selector_seconds"))
    fixed = dict(session.layouts)
    return Problem(graph, session.registry.ops, fixed=fixed, seconds=seconds, memory=memory)


def _keep_layouts(session: Any, graph: Graph, layouts: Mapping[Value, TensorLayout]) -> None:
    """Remembers how variables lie: the jobs compiled after this one take them as they are."""
    for op in graph.of_type("variable"):
        layout = layouts.get(op.output()) or TensorLayout(op.placement, (B,))
        session.layouts.setdefault(op.name, layout)


def _pipelines(session: Any) -> tuple[Pipeline, Pipeline]:
    """The passes on the logical graph, and those on the graph with an op per device."""
    specs = [spec for spec in session.registry.passes if spec.default]
    parts = (
        [load(s.load)() for s in specs if s.stage != "physical"],
        [load(s.load)() for s in specs if s.stage == "physical"],
    )
    logical, physical = (Pipeline(p, session.settings.verify_passes) for p in parts)
    return logical, physical


def _asked(build: JobBuild) -> Iterator[Pass]:
    """The passes that a job's own settings ask for, with their options."""
    if build.config.get(MIXED):
        made = frozenset(build.builder.ops) - build.forward if build.forward else frozenset()
        yield MixedPrecision(_half(build), made)
    if build.segments and build.forward:
        yield Checkpointing(tuple(map(tuple, build.segments.values())), build.forward)
    tables = indexed_tables(build.config)
    if tables:
        yield IndexedSlices(tables)
    parts = micro_batches(build.config, build.kind)
    if parts > 1:
        yield GradientAccumulation(parts, tuple(build.gradient_sums))
    placed = optimizer_placement(build.config) if build.kind == "train" else None
    if placed is not None:
        yield placed
    shared = _owners_elsewhere(build, compiles=placed is None)
    if shared:
        yield SharedPlacement(shared)
    if any(map(takes_apart, build.builder.ops.values())):
        yield SplitNorms({name: layout.sbp for name, layout in build.session.layouts.items()})


def _half(build: JobBuild) -> str:
    """The half type of a job that computes in one."""
    ops = build.builder.ops.values()
    return half_type(build.session.registry, ops, build.config.get(HALF))


def _owners_elsewhere(build: JobBuild, compiles: bool) -> dict[str, Owned]:
    """Where other jobs of the session keep parts of variables on each device.

    A job that does so by its own settings asks those only that are compiled.
    """

    def compiled(job: Any) -> Compiled | None:
        if job.name == build.name or job.kind != "train" or not optimizer_placement(job.config):
            return None
        found: Compiled | None = job.compile() if compiles else job.compiled
        return found

    found: dict[str, Owned] = {}
    for other in build.session.each(compiled):
        if other is not None:
            found.update(owners(other.spread))
    return found


def _require_devices(build: JobBuild, graph: Graph) -> None:
    """Every device that the job names must be there; asked once per placement, for the last ones.

    So an error says how many it takes.
    """
    session, seen = build.session, set()
    for name, op in graph.ops.items():
        if op.placement in seen:
            continue
        seen.add(op.placement)
        line = graph.lines.get(name)
        for machine, index in sorted(op.placement.devices, key=lambda d: (-d[0], -d[1])):
            if machine >= session.resources.machine_num:
                raise JobError(
                    f"placing op {name!r} of job {build.name!r}",
                    at=line,
                    found=f"machine {machine}",
                    allowed=f"machines below {session.resources.machine_num}",
                )
            session.registry.require_device(op.placement.device_type, index + 1, line)


def _check_requests(build: JobBuild, graph: Graph) -> None:
    """Requests for variables must be what devices hold of them already."""
    session = build.session
    for op in graph.of_type("variable"):
        if not op.sbp or op.sbp[0] is None:
            continue
        (type_,) = graph.types[op.name]
        wanted = TensorLayout(op.placement, op.sbp[0])
        for rank in range(op.placement.size):
            held = session.held_region(op.name, op.placement.device(rank))
            if held not in (None, wanted.region(type_.shape, rank)):
                raise JobError(
                    f"laying out variable {op.name!r} in job {build.name!r}",
                    at=graph.lines.get(op.name),
                    found=f"a request for {wanted}",
                    allowed=f"{session.layouts.get(op.name, 'parts')} that are there already: an "
                    "earlier job of the session has made them",
                    hint="ask for one distribution in both jobs, or drop the later request",
                )


def _options(build: JobBuild, physical: Physical, sharing: ReplicaDedup) -> CompileOptions:
    config, session = build.config, build.session

    def is_resident(name: str, device: Device) -> bool:
        shard = physical.shards.get(name)
        return bool(session.holds(name if shard is None else shard.variable, device))

    return CompileOptions(
        seed=int(config.get("random_seed") or 0),
        width=int(config.get("concurrency_width")),
        inplace=bool(config.get("enable_inplace")),
        reuse=bool(config.get("enable_reused_mem")),
        workers=build.session.settings.stream_threads,
        memory_limit=session.free_memory,
        is_resident=is_resident,
        sharing=sharing,
        budget=build.session.budget,
        settings=kernel_settings(build),
        recording=_recording(build),
    )


def _recording(build: JobBuild) -> frozenset[str]:
    """Those types of a job's devices whose drivers record steps."""
    devices = build.session.registry.devices
    asked = {op.placement.device_type for op in build.builder.ops.values()}
    return frozenset(kind for kind in asked if kind in devices and devices[kind].records)


def kernel_settings(build: JobBuild) -> Attrs:
    """What session and job ask of kernels: part of the plan."""
    allowed = build.session.resources.others.get(TENSOR_FLOAT_32, True)
    mixed = {HALF: _half(build)} if build.config.get(MIXED) else {}
    return Attrs({TENSOR_FLOAT_32: allowed, **mixed})


def updated_variables(plan: Plan, specs: Mapping[str, OpSpec]) -> dict[str, set[Device]]:
    """The devices on which a plan overwrites variables, by logical variable."""
    found: dict[str, set[Device]] = {}
    for task in plan.tasks:
        for index in specs[task.type].overwrites(task.attrs):
            if index < len(task.inputs):
                name = plan.buffers[task.inputs[index]].name.rsplit(":", 1)[0]
                logical = plan.shards[name][0] if name in plan.shards else name
                found.setdefault(logical, set()).add(plan.buffers[task.inputs[index]].memory)
    return found


def input_attrs(shape: Sequence[int], dtype: str, batch_axis: int | None) -> dict[str, Any]:
    """The attributes of an ``input`` op."""
    return {"shape": tuple(shape), "dtype": dtype, "batch_axis": batch_axis}


def micro_shape(
    build: JobBuild, parameter: str, shape: Sequence[int], line: SourceLine | None
) -> tuple[int, ...]:
    """The shape of a parameter's part in one micro-batch, which the job function sees."""
    parts = micro_batches(build.config, build.kind)
    if parts == 1:
        return tuple(shape)
    if not shape or shape[0] % parts:
        raise JobError(
            f"feeding {parameter!r} of job {build.name!r} in {parts} micro-batches",
            at=line,
            found=f"shape {tuple(shape)}",
            allowed=f"a first axis that {parts} divides",
            hint=f"change the batch, or function_config.{MICRO_BATCHES}",
        )
    return (shape[0] // parts, *shape[1:])
