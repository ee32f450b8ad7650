"""Completion of a traced job: adds quantization, backward pass, updates and optimizer states."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from flow_core.base.errors import JobError, SourceLine
from flow_core.frontend.config.function_config import micro_batches
from flow_core.frontend.config.quantization import calibrated_ranges, quantization
from flow_core.frontend.job.config_training import configured_training
from flow_core.frontend.job.micro_batches import scale_losses
from flow_core.frontend.job.tracing import Traced
from flow_core.frontend.job.train import TrainVariable, build_training
from flow_core.frontend.trace.job_build import JobBuild, TrainRequest, train_request
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.graph import Attrs, GraphBuilder, Value
from flow_core.ops.build import Emitter
from flow_core.passes.base import PassContext
from flow_core.passes.quantization.post_training import PostTraining, observed
from flow_core.sharding.topology import Placement

_log = logging.getLogger("flow_core")

STEP_VARIABLE = "System-Train-TrainStep-{job}"
"""Name of the variable in which a train job counts its steps, as in OneFlow's checkpoints."""


def differentiate(traced: Traced) -> dict[Value, Value]:
    """Add the ops to a traced job's graph that its function requests but does not contain.

    Train jobs get a backward pass, updates and a step counter; jobs with quantization-aware
    training get rounding ops.  The variables that this adds are declared in the session.

    Returns:
        The gradients of the trainable and the watched values.

    Raises:
        JobError: a train job has no optimizer; for other causes see `build_training`.
    """
    build, line = traced.build, traced.line
    if build.kind == "train":
        scale_losses(build, _train_requests(build, line))
        requests = build.train_requests
        placement = requests[0].placement or build.builder.ops[requests[0].losses[0].op].placement
        _add_step_variable(build, _of_numbers(build, placement))
        _quantize(build, traced.fetched, line)
        gradients = _add_training(build, requests, placement)
    else:
        _quantize(build, traced.fetched, line)
        gradients = {}
    _declare_variables(build, line)
    return gradients


def _train_requests(build: JobBuild, line: SourceLine | None) -> list[TrainRequest]:
    """Return the calls of ``minimize``; older programs set the optimizer in the function config."""
    if build.losses and not build.train_requests:
        options = configured_training(build.config, line)
        build.train_requests.append(train_request(options, build.losses, line))
    if not build.train_requests:
        raise JobError(
            f"compiling job {build.name!r}",
            at=line,
            found='a job of type "train" without an optimizer',
            allowed="a call of an optimizer's minimize(loss) in the job function",
            hint='add that call, or decorate the function with type="predict" if it does not train',
        )
    return build.train_requests


def _quantize(build: JobBuild, fetched: Sequence[Value], line: SourceLine | None) -> None:
    """Round the values that int8 kernels would read and write, if the job requests it."""
    rounding = quantization(build.config, _step_value(build).op if build.kind == "train" else None)
    ranges = calibrated_ranges(build.config)
    if rounding is None and ranges is None:
        return
    if ranges is not None and (rounding is not None or build.kind == "train"):
        raise JobError(
            f"quantization of job {build.name!r}",
            at=line,
            found=f"a {build.kind} job with ranges of a calibration",
            allowed="a job that does not train, and no quantization-aware training",
        )
    graph = replace(build.builder.build(), results=tuple(fetched))
    context = PassContext(build.session.registry.ops)
    if rounding is not None:
        graph = rounding.apply(graph, context)
    elif ranges:
        graph = PostTraining(ranges).apply(graph, context)
    else:
        graph, names = observed(graph, context)
        ends = iter(graph.results[len(fetched) :])
        build.observed = dict(zip(names, zip(ends, ends, strict=True), strict=True))
    build.rounded = dict(zip(fetched, graph.results, strict=False))
    build.builder = GraphBuilder(replace(graph, results=()))
    build.emitter = Emitter(build.builder, build.session.registry.ops)


def _add_training(
    build: JobBuild, requests: Sequence[TrainRequest], placement: Placement
) -> dict[Value, Value]:
    """Add the backward pass, the updates, and an op that advances the step counter."""
    build.forward = frozenset(build.builder.ops)
    counter, numbers = _step_value(build), _of_numbers(build, placement)
    (step,) = build.emitter.emit("reshape", [counter], {"shape": ()}, placement=numbers)
    gradients: dict[Value, Value] = {}
    for request in requests:
        gradients |= _minimize(build, request, step, placement)
    build.emitter.emit("advance_step", [counter], placement=numbers)
    return gradients


def _of_numbers(build: JobBuild, placement: Placement) -> Placement:
    """Return the devices that compute step numbers and learning rates for a placement."""
    on_host = placement.device_type in build.session.registry.host_numbers
    return placement.on_host() if on_host else placement


def _step_value(build: JobBuild) -> Value:
    return Value(STEP_VARIABLE.format(job=build.name), 0)


def _add_step_variable(build: JobBuild, placement: Placement) -> None:
    attrs = {
        "shape": (1,), "dtype": "int64", "initializer": ("constant", 0), "trainable": False
    }  # fmt: skip
    name = _step_value(build).op
    build.emitter.emit("variable", (), attrs, placement=placement, name=name)


def _minimize(
    build: JobBuild, request: TrainRequest, step: Value, placement: Placement
) -> dict[Value, Value]:
    watched = [part for w in build.watches if w.gradient for part in w.blob.parts]
    return build_training(
        build.emitter,
        losses=request.losses,
        elements=request.elements,
        optimizer=request.optimizer,
        variables=_train_variables(build),
        step=step,
        placement=placement,
        numbers=_of_numbers(build, placement),
        line=request.line,
        watched=watched,
        job=build.name,
        micro_batches=micro_batches(build.config),
        sums=build.gradient_sums,
    )


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


def _declare_variables(build: JobBuild, line: SourceLine | None) -> None:
    """Declare the variables that training has added: the step counter and optimizer states."""
    for name, op in build.builder.ops.items():
        if op.type == "variable" and name not in build.variables:
            type_ = build.builder.types[name][0]
            info = VariableInfo(name, type_, Attrs(op.attrs), build.name, line)
            build.session.declare_variable(info)
            build.variables[name] = op.output()


def log_notes(job: str, requests: Sequence[TrainRequest]) -> None:
    """Log the notes of all groups of variables of a train job, each note once."""
    notes = {
        group.note: request.line
        for request in requests
        for group in request.optimizer.options().groups
        if group.note
    }
    for note, line in notes.items():
        _log.warning("job %r at %s: %s", job, line, note)
