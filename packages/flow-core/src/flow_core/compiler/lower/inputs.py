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
from flow_core.plugins.specs import KernelQuery, KernelSpec, OpSpec
from flow_core.sharding.topology import Device

LEAVES = ("input", "variable")
"""Types of ops that have no kernel because the runtime provides their outputs."""


class Kernels(Protocol):
    """The lookup of specs and kernels, which the registry implements."""

    @property
    def ops(self) -> Mapping[str, OpSpec]:
        """Op specs by type."""

    def find_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec:
        """Return the kernel for a query, or raise `KernelNotFoundError`."""

    def accepting_kernel(self, query: KernelQuery, device_type: str) -> KernelSpec | None:
        """Return the kernel for a query, or None."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The settings of a job that the compiler reads.

    Attributes:
        width: the number of steps in flight.
        inplace: whether an output may overwrite an input that no later op reads.
        reuse: whether memory is reused within a step.
        memory_limit: the number of bytes that a device has for the plan; None for no limit.
        is_resident: whether a physical variable already has memory on a device.
        workers: the number of threads for the streams of several devices; None for as many as pay
            off.
        sharing: the replicas that devices with a common memory share.
        budget: the cores of the process.
        settings: the settings in kernel queries, which are part of the plan.
        recording: the device types of the plan whose drivers record steps.
        alignment: the number of bytes to a multiple of which offsets are aligned, by device type.
        ahead: the number of weights that are gathered ahead of their readers; None for all.
        batching: whether one launch may compute the rows of several devices.
        postpone: whether stages of a pipeline may compute gradients of weights later, which takes
            memory.
        classes: the number of devices of each class, by its first device, in a graph that has ops
            of some devices only; empty for other graphs.
    """

    seed: int = 0
    width: int = 4
    inplace: bool = True
    reuse: bool = True
    memory_limit: Limit | None = None
    is_resident: IsResident = lambda _, __: False
    workers: int | None = None
    sharing: ReplicaDedup = NO_DEDUP
    budget: Budget = field(default_factory=lambda: find_budget(asked(os.environ)))
    settings: Mapping[str, AttrValue] = NO_ATTRS
    recording: frozenset[str] = frozenset()
    alignment: Mapping[str, int] = field(default_factory=dict)
    costs: CostModel = DEFAULT
    ahead: int | None = None
    batching: bool = True
    postpone: bool = True
    classes: Mapping[Device, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one lowering, from a physical graph to a plan.

    Attributes:
        graph: the physical graph, in which no result is a view of a variable that a step changes.
        threads: the number of threads of a kernel.
        constant: names of the ops that do not run in each step.
        derived: those of them that run again after a variable was overwritten; the others run only
            once, when the plan is loaded.
    """

    graph: Graph
    kernels: Kernels
    options: CompileOptions
    threads: int
    constant: frozenset[str]
    derived: frozenset[str] = frozenset()

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
