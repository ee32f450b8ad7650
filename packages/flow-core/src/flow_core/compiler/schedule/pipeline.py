"""Pipelines: the stages of a graph of micro-batches, and what limits the order of their ops.

Compute streams that run parts of the same logical op of a micro-batch form a stage.  A stage may
hold several chunks of the network, which a micro-batch visits one after the other, with visits to
other stages in between.  What a stage computes for a micro-batch and a chunk, forward and backward,
is a unit; a unit is open from its first op to its last one, and its activations need memory for
that time.

The number of open units of a stage is bounded, so that memory is.  The bounds are those of

- 1F1B (one forward, one backward; Narayanan et al. 2019, "PipeDream", section 3.2) for stages with
  one chunk: the number of stages from this one to the last;
- interleaved 1F1B (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
  Clusters Using Megatron-LM", section 2.2) for several chunks.  Units start chunk by chunk for as
  many micro-batches as there are stages.

Ops on whose results no other stage depends, such as the products for gradients of weights, may
wait until a stage has nothing else to do, as in the schedule ZB-H1 (Qi et al. 2024, "Zero Bubble
Pipeline Parallelism", section 2).  They keep their unit open, so memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from flow_core.comm.exchange import BOXING
from flow_core.ir.graph import Graph, Op, Origin
from flow_core.passes.gradient_accumulation import ONCE


def micro_batches(graph: Graph) -> dict[str, int]:
    """Return the micro-batch of each op: the last micro-batch on which the op depends."""
    number: dict[str, int] = {}
    for op in graph.ops.values():
        number[op.name] = max((number[v.op] for v in op.inputs), default=_micro_batch(graph, op))
    return number


def _micro_batch(graph: Graph, op: Op) -> int:
    found = graph.origin(op.name).micro_batch
    return ONCE if found is None else found


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The units of a pipeline."""

    units: Mapping[str, int]  # in the order in which they start, by op; `ONCE` for ops without one
    limits: Mapping[str, int] = field(default_factory=dict)  # open units, by compute stream
    # The ops on whose results no other stage depends; empty if there is a single stage.
    late: Collection[str] = frozenset()


def find_pipeline(graph: Graph, stream_of: Mapping[str, str]) -> Pipeline:
    """Return the pipeline of a physical graph.

    Args:
        stream_of: the compute stream of each op, except exchanges.
    """
    micro = micro_batches(graph)
    stage_of = _stages(graph, micro, stream_of)
    stages = list(dict.fromkeys(stage_of.values()))
    limits = {stream: len(stages) - stages.index(stage) for stream, stage in stage_of.items()}
    if len(stages) < 2:
        return Pipeline(micro, limits)
    place = {
        name: stage_of[stream_of[name]]
        for name, number in micro.items()
        if number != ONCE and name in stream_of and graph.ops[name].type != "input"
    }
    needed = _needed_elsewhere(graph, micro, place)
    late = frozenset(place.keys() - needed)
    depth = _depths(graph, micro, place)
    levels = _levels(depth, place, needed)
    rows = len(stages)
    count, rest = divmod(len(levels), rows)
    # Only if micro-batches visit all stages in one order, ``count`` times, is the number of a chunk
    # the same for its forward and its backward ops; other networks run without chunks.
    if count < 2 or rest or levels != stages * count:
        return Pipeline(micro, limits, late)
    last = 2 * (len(levels) - 1)
    units = {
        name: (number // rows * count + min(depth.get(name, 0), last - depth.get(name, 0)) // rows)
        * rows
        + number % rows
        if number != ONCE
        else ONCE
        for name, number in micro.items()
    }
    ahead = {stream: 2 * (limit - 1) + (count - 1) * rows + 1 for stream, limit in limits.items()}
    return Pipeline(units, ahead, late)


def _stages(graph: Graph, micro: Mapping[str, int], stream_of: Mapping[str, str]) -> dict[str, str]:
    """Return the stage of each stream; stages are in the order in which micro-batches reach them.

    A stage is named by one of its streams.
    """
    stage: dict[str, str] = {}
    stream_of_op: dict[Origin, str] = {}

    def find(name: str) -> str:
        while stage[name] != name:
            name = stage[name]
        return name

    for name, stream in stream_of.items():
        if micro[name] == ONCE or graph.ops[name].type == "input":
            continue
        stage.setdefault(stream, stream)
        first = stream_of_op.setdefault(graph.origin(name).unsharded, stream)
        stage[find(stream)] = find(first)
    return {stream: find(stream) for stream in stage}


def _needed_elsewhere(graph: Graph, micro: Mapping[str, int], place: Mapping[str, str]) -> set[str]:
    """Return the ops on which an op of the same micro-batch in another stage depends."""
    found: set[str] = set()
    readers: dict[str, list[Op]] = {}
    for op in graph.ops.values():
        for value in op.inputs:
            readers.setdefault(value.op, []).append(op)
    ends: dict[str, set[str]] = {}  # the stages that read the result of an exchange
    for op in reversed(list(graph.ops.values())):
        mine = [r for r in readers.get(op.name, ()) if micro[r.name] == micro[op.name] != ONCE]
        reached = {place[r.name] for r in mine if r.name in place}
        reached.update(*(ends[r.name] for r in mine if r.name in ends))
        if op.type == BOXING:
            ends[op.name] = reached
        onward = any(r.name in found for r in mine)
        if onward or (op.name in place and reached - {place[op.name]}):
            found.add(op.name)
    return found


def _depths(graph: Graph, micro: Mapping[str, int], place: Mapping[str, str]) -> dict[str, int]:
    """Return how often its micro-batch has changed stages before each op."""
    depth, at = dict[str, int](), dict[str, str]()
    first = next(iter(place.values()))
    for op in graph.ops.values():
        if micro[op.name] == ONCE:
            continue
        read = [v.op for v in op.inputs if v.op in depth]
        if op.type == BOXING and read:
            deepest = max(read, key=depth.__getitem__)
            depth[op.name], at[op.name] = depth[deepest], at[deepest]
        elif op.name in place and (read or place[op.name] == first):
            at[op.name] = place[op.name]
            changes = (depth[name] + (at[name] != place[op.name]) for name in read)
            depth[op.name] = max(changes, default=0)
    return depth


def _levels(
    depth: Mapping[str, int], place: Mapping[str, str], needed: Collection[str]
) -> list[str]:
    """Return the stages that the forward pass of a micro-batch visits, one after the other.

    The backward pass visits them in the opposite order.  If it does not reach the first stage, the
    result is empty.
    """
    reached = needed & depth.keys()
    visited = {depth[name]: stage for name, stage in place.items() if name in reached}
    last = max(visited, default=0) + 1
    path = [visited.get(level, "") for level in range(last)]
    half = last // 2
    is_mirrored = last % 2 == 0 and path[half + 1 :] == path[1:half][::-1]
    return path[: half + 1] if is_mirrored else []
