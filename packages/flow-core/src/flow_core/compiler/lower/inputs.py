"""The inputs of lowering, which the phases of lowering read and never change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from flow_core.base.thread_budget import Budget, asked, find_budget
from flow_core.compiler.memory.arena_assignment import IsResident, Limit
from flow_core.compiler.memory.inplace_reduction import Form
from flow_core.compiler.memory.replica_dedup import NO_DEDUP, ReplicaDedup
from flow_core.compiler.schedule.op_costs import OpCosts
from flow_core.costs.model import DEFAULT, CostModel
from flow_core.ir.graph import NO_ATTRS, AttrValue, Graph, Op
from flow_core.passes.base import KernelLookup
from flow_core.plugins.specs import KernelQuery, OpSpec
from flow_core.sharding.topology import Device

LEAVES = ("input", "variable")
"""Types of ops that have no kernel because the runtime provides their outputs."""


class Kernels(KernelLookup, Protocol):
    """The lookup of specs and kernels, which the registry implements."""

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        """Op specs by type."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The settings of a job that the compiler reads."""

    seed: int = 0
    width: int = 4  # the number of steps in flight
    inplace: bool = True  # whether an output may overwrite an input that no later op reads
    reuse: bool = True  # whether memory is reused within a step
    memory_limit: Limit | None = None  # the bytes that a device has for the plan
    is_resident: IsResident = lambda _, __: False  # whether a variable has memory there
    # The number of threads for the streams of several devices; None for as many as pay off.
    workers: int | None = None
    sharing: ReplicaDedup = NO_DEDUP  # of devices with a common memory
    budget: Budget = field(default_factory=lambda: find_budget(asked(os.environ)))
    settings: Mapping[str, AttrValue] = NO_ATTRS  # in kernel queries, part of the plan
    recording: frozenset[str] = frozenset()  # device types whose drivers record steps
    alignment: Mapping[str, int] = field(default_factory=dict)  # of offsets, by device type
    costs: CostModel = DEFAULT
    ahead: int | None = None  # how many weights are gathered ahead of their readers; None: all
    batching: bool = True  # whether one launch may compute the rows of several devices
    postpone: bool = True  # whether stages may compute gradients of weights later, using memory
    # The number of devices of each class, by its first device, in a graph that has ops of some
    # devices only; empty for other graphs.
    classes: Mapping[Device, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one lowering, from a physical graph to a plan."""

    graph: Graph  # in which no result is a view of a variable that a step changes
    kernels: Kernels
    options: CompileOptions
    threads: int  # of a kernel
    constant: frozenset[str]  # names of the ops that do not run in each step
    derived: frozenset[str] = frozenset()  # those that run again after a variable was overwritten

    @property
    def costs(self) -> OpCosts:
        accelerators, model = self.options.recording, self.options.costs
        return OpCosts(self.graph, self.specs, model, accelerators, self.threads)

    @property
    def specs(self) -> Mapping[str, OpSpec]:
        return self.kernels.ops

    def query(self, op: Op, form: Form) -> KernelQuery:
        find = partial(self.kernels.find_kernel, device_type=op.placement.device_type)
        type_, attrs, values = form
        read, made = tuple(map(self.graph.type_of, values)), self.graph.types[op.name]
        return KernelQuery(type_, attrs, read, made, find, self.options.settings)

    def has_kernel(self, op: Op, form: Form) -> bool:
        """Return whether a kernel of an op's device type accepts the op in a form."""
        query = self.query(op, form)
        return self.kernels.accepting_kernel(query, op.placement.device_type) is not None
