"""From a job function to an executable: trace, differentiate, run the passes, lower, bind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flow_core.compiler.boxing import Layout
from flow_core.compiler.lower import CompileOptions, lower
from flow_core.compiler.physical import BoxingEntry, Physical, to_physical
from flow_core.errors import JobError, SourceLine
from flow_core.frontend.config_training import configured_training
from flow_core.frontend.jobs import JobBuild, TrainRequest, train_request
from flow_core.frontend.train import TrainVariable, build_training
from flow_core.frontend.variables import VariableInfo
from flow_core.ir import Attrs, Graph, Value, verify
from flow_core.passes.base import PassContext, PassTiming, Pipeline
from flow_core.plan import Plan, Transfer
from flow_core.plugins.specs import OpSpec, load
from flow_core.topology import LinkModel, Placement

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
    """

    logical: Graph
    spread: Graph
    graph: Graph
    plan: Plan
    timings: list[PassTiming]
    physical: Physical

    @property
    def layouts(self) -> Mapping[Value, Layout]:
        """Layouts of the logical values, when there are several devices."""
        return self.physical.layouts


def add_training(build: JobBuild, line: SourceLine | None) -> dict[Value, Value]:
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
    step = _step(build, placement)
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


def _step(build: JobBuild, placement: Placement) -> Value:
    """The number of the running step as a scalar."""
    attrs = {
        "shape": (1,), "dtype": "int64", "initializer": ("constant", 0), "trainable": False
    }  # fmt: skip
    name = STEP_VARIABLE.format(job=build.name)
    (value,) = build.emitter.emit("variable", (), attrs, placement=placement, name=name)
    (scalar,) = build.emitter.emit("reshape", [value], {"shape": ()}, placement=placement)
    return scalar


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


def compile_graph(build: JobBuild, results: Sequence[Value], inputs: Sequence[str]) -> Compiled:
    """The plan of a traced job.

    Args:
        build: the job, backward pass and updates included.
        results: values to fetch at each step.
        inputs: names of the ``input`` ops in the order in which they are fed.
    """
    session = build.session
    build.builder.results = tuple(results)
    logical = build.builder.build()
    verify(logical)
    context = PassContext(session.registry.ops)
    before, after = _pipelines(session)
    spread = before.run(logical, context)
    _require_devices(build, spread)
    physical, splitting = _timed(
        "to_physical", len(spread), lambda: to_physical(spread, context.specs, LinkModel())
    )
    graph = after.run(physical.graph, context)
    plan, lowering = _timed(
        "lower",
        len(graph),
        lambda: lower(graph, session.registry, inputs, build.name, _options(build, physical)),
    )
    shards = {n: (s.variable, s.region) for n, s in physical.shards.items()}
    plan = replace(plan, shards=shards, ledger=tuple(map(_transfer, physical.ledger)))
    timings = [*before.timings, splitting, *after.timings, lowering]
    return Compiled(logical, spread, graph, plan, timings, physical)


def _transfer(entry: BoxingEntry) -> Transfer:
    return Transfer(
        value=entry.value,
        steps=(entry.hop,),
        source=entry.source,
        target=entry.target,
        nbytes=entry.nbytes,
        seconds=entry.seconds,
        line=entry.line,
    )


T = TypeVar("T", Plan, Physical)


def _timed(name: str, before: int, work: Callable[[], T]) -> tuple[T, PassTiming]:
    started = time.perf_counter()
    result = work()
    after = len(result.tasks) if isinstance(result, Plan) else len(result.graph)
    return result, PassTiming(name, before, after, time.perf_counter() - started)


def _pipelines(session: Any) -> tuple[Pipeline, Pipeline]:
    """The passes on the logical graph, and those on the graph with an op per device."""
    specs = [spec for spec in session.registry.passes if spec.default]
    parts = (
        [load(s.load)() for s in specs if s.stage != "physical"],
        [load(s.load)() for s in specs if s.stage == "physical"],
    )
    logical, physical = (Pipeline(p, session.settings.verify_passes) for p in parts)
    return logical, physical


def _require_devices(build: JobBuild, graph: Graph) -> None:
    """Every device that the job names must be there; asked once per placement."""
    session, seen = build.session, set()
    for name, op in graph.ops.items():
        if op.placement in seen:
            continue
        seen.add(op.placement)
        line = graph.lines.get(name)
        for machine, index in op.placement.devices:
            if machine >= session.resources.machine_num:
                raise JobError(
                    f"placing op {name!r} of job {build.name!r}",
                    at=line,
                    found=f"machine {machine}",
                    allowed=f"machines below {session.resources.machine_num}",
                )
            session.registry.require_device(op.placement.device_type, index + 1, line)


def _options(build: JobBuild, physical: Physical) -> CompileOptions:
    config = build.config
    return CompileOptions(
        seed=int(config.get("random_seed") or 0),
        width=int(config.get("concurrency_width")),
        inplace=bool(config.get("enable_inplace")),
        reuse=bool(config.get("enable_reused_mem")),
        origins=physical.origins,
        memory_limit=lambda device: build.session.driver(device).memory(),
    )


def updated_variables(plan: Plan, specs: Mapping[str, OpSpec]) -> dict[str, set[str]]:
    """The devices on which a plan overwrites variables, by logical variable."""
    found: dict[str, set[str]] = {}
    for task in plan.tasks:
        for index in specs[task.type].mutates:
            if index < len(task.inputs):
                name = plan.buffers[task.inputs[index]].name.rsplit(":", 1)[0]
                logical = plan.shards[name][0] if name in plan.shards else name
                found.setdefault(logical, set()).add(task.device)
    return found


def input_attrs(shape: Sequence[int], dtype: str, batch_axis: int | None) -> dict[str, Any]:
    """The attributes of an ``input`` op."""
    return {"shape": tuple(shape), "dtype": dtype, "batch_axis": batch_axis}
