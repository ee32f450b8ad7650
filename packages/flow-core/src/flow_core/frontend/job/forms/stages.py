"""Division of a traced job into the stages of a pipeline, each on a part of its devices.

The job is divided before its backward pass is added, so that gradients, updates and optimizer
states follow their ops and variables as in a program that places its layers itself.  Devices with
fast links to each other are in one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flow_core.base.errors import JobError
from flow_core.compiler.schedule.op_costs import OpCosts
from flow_core.costs.model import HOST, Work
from flow_core.frontend.config.function_config import MIXED, RANGES
from flow_core.frontend.job.forms.cuts import Cuts, cut
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.ir.graph import Op
from flow_core.sharding.topology import Device, Placement

PIPELINE_STAGES = "pipeline_stages"
"""The setting with the number of stages."""

PASSES = {"train": (3.0, 2.0), "predict": (1.0, 1.0)}
"""How often a step computes as much as the forward pass, and sends what crosses a border."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a job."""

    placement: Placement
    first: str  # with its line
    last: str  # with its line
    share: float  # its part of the predicted time of the forward pass

    def __str__(self) -> str:
        ops = f"{self.first} to {self.last}"
        return f"{self.placement}: {ops}, {100 * self.share:.0f} % of the forward pass"


def common_placement(build: JobBuild) -> Placement | None:
    """Return the devices of all ops of a job; None if ops have placements of their own.

    Some ops, such as those of step numbers, may be on the hosts of these devices.  Fed arrays are
    on the first device of the program.
    """
    found = {op.placement for op in _placed_ops(build)}
    main = [p for p in found if p.device_type != HOST] or [*found]
    (placement, *others) = main or [build.default_placement]
    return None if others or not found <= {placement, placement.on_host()} else placement


def _placed_ops(build: JobBuild) -> list[Op]:
    return [op for op in build.builder.ops.values() if op.type != "input"]


def can_be_divided(build: JobBuild, count: int) -> bool:
    """Return whether the devices of a job can be divided into a number of stages."""
    placement = common_placement(build)
    return placement is not None and len(placement.hierarchy) == 1 and placement.size % count == 0


def divide(build: JobBuild, count: int, onto: Placement | None = None) -> None:
    """Place the ops of a traced job on the stages of a pipeline, and record them in the job.

    Args:
        onto: the devices to divide, if they are not those of the job.

    Raises:
        JobError: the job has ops on several placements, another number of devices, or too few
            places at which it can be cut.
    """
    common = common_placement(build)
    placement = common and (onto or common)
    if placement is None or len(placement.hierarchy) > 1 or placement.size % count:
        raise _refused(build, count, placement)
    places = _parts(build, placement, count)
    graph, costs = build.builder.build(), build.session.costs
    seconds = OpCosts(graph, build.emitter.specs, costs, _recorded(build)).seconds
    computing, sending = PASSES[build.kind]
    a, b = places[0].device(0), places[1].device(0)
    per_byte = costs.links.between(a, b).per_byte() * sending / computing
    cuts = cut(graph.ops, graph.types, count, seconds, per_byte)
    if not cuts.stage:
        raise JobError(
            f"dividing job {build.name!r} into {count} stages",
            found="fewer places at which it can be cut: a stage has ops that read fed values and "
            "variables, and a trained variable is read in one stage",
            allowed="networks of several layers with weights of their own",
            hint=f"set function_config.{PIPELINE_STAGES} to a smaller number",
        )
    _check_variables(build, places, cuts)
    build.stages = _described(build, places, cuts, {n: seconds(o) for n, o in graph.ops.items()})
    for name, op in graph.ops.items():
        build.builder.ops[name] = _placed(op, places[cuts.stage[name]])


def _check_variables(build: JobBuild, places: Sequence[Placement], cuts: Cuts) -> None:
    """Check that no earlier job holds a variable on other devices than those of its stage."""
    for name, layout in build.session.layouts.items():
        if name not in cuts.stage or name in build.session.staged:
            continue
        if layout.placement.devices != places[cuts.stage[name]].devices:
            raise JobError(
                f"dividing job {build.name!r} into {len(places)} stages",
                at=build.builder.lines.get(name),
                found=f"variable {name!r}, which an earlier job holds on {layout.placement}",
                allowed=f"a variable on {places[cuts.stage[name]]}",
                hint="call this job before the other ones",
            )


def _refused(build: JobBuild, count: int, placement: Placement | None) -> JobError:
    ops = _placed_ops(build)
    found = f"its ops on {placement}"
    if placement is None:
        first = {op.placement: op.name for op in reversed(ops)}
        rows = [f"{name!r} at {build.builder.lines.get(name)} on {p}" for p, name in first.items()]
        found = f"ops with placements of their own: {' and '.join(rows[::-1][:2])}"
    return JobError(
        f"dividing job {build.name!r} into {count} stages",
        found=found,
        allowed=f"a list of devices for all ops, whose number is a multiple of {count}",
        hint=f"remove function_config.{PIPELINE_STAGES}, or the placements of single ops",
    )


def _parts(build: JobBuild, placement: Placement, count: int) -> list[Placement]:
    """Return the devices of each stage; those between which links are fast are in one stage."""
    links = build.session.costs.links.classes[::-1]
    kind, size = placement.device_type, placement.size // count

    def near(numbers: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        return tuple(link.group(Device(kind, *numbers)) for link in links)

    devices = sorted(placement.devices, key=near)
    return [
        Placement(kind, tuple(sorted(devices[i : i + size])))
        for i in range(0, placement.size, size)
    ]


def _placed(op: Op, placement: Placement) -> Op:
    """Return an op on the devices of a stage; hints for a single device have no meaning."""
    keeps = placement.size > 1 and op.placement.size > 1
    place = placement.on_host() if op.placement.device_type == HOST else placement
    return replace(op, placement=place, sbp=op.sbp if keeps else ())


def _described(
    build: JobBuild, places: Sequence[Placement], cuts: Cuts, seconds: Mapping[str, float]
) -> tuple[Stage, ...]:
    def text(name: str) -> str:
        line = build.builder.lines.get(name)
        return f"{name!r} at {line}" if line else repr(name)

    total, found = sum(seconds.values()), []
    for number, place in enumerate(places):
        names = [name for name in cuts.row if cuts.stage[name] == number]
        share = sum(n for name, n in seconds.items() if cuts.stage[name] == number) / total
        found.append(Stage(place, text(names[0]), text(names[-1]), share))
    return tuple(found)


def least_seconds(build: JobBuild) -> tuple[float, float]:
    """Return lower bounds on the predicted time of a step, or of each of its micro-batches.

    They are that of what the busiest device computes, and that of the longest chain of ops.  Only
    ops with much arithmetic count, as evenly divided among their devices: passes may remove others.

    Args:
        build: the job, including its backward pass and updates.
    """
    graph, model = build.builder.build(), build.session.costs
    recorded = _recorded(build)
    narrowed = any(build.config.get(name) for name in (MIXED, RANGES))  # passes shrink values then
    busy, chain = dict[tuple[int, int], float](), dict[str, float]()
    for name, op in graph.ops.items():
        taken, kind = 0.0, op.placement.device_type
        spec = build.emitter.specs[op.type]
        if spec.work is not None:
            work = Work(spec, op.attrs, graph.input_types(op), graph.types[name])
            device = model.device(HOST if model.computes_on_host(kind, recorded) else kind)
            taken = device.seconds(work.flops, 0 if narrowed else work.nbytes) / op.placement.size
            for numbers in op.placement.devices:
                busy[numbers] = busy.get(numbers, 0.0) + taken
        chain[name] = taken + max((chain[value.op] for value in op.inputs), default=0.0)
    return max(busy.values(), default=0.0), max(chain.values(), default=0.0)


def _recorded(build: JobBuild) -> frozenset[str]:
    """Return the device types that compute on hardware of their own."""
    devices = build.session.registry.devices.items()
    return frozenset(kind for kind, spec in devices if spec.records_launches)
