"""The check of a plan as it runs: its waits, its memory, its passes, and each of its ops.

The oracle compares a plan without fusion and without memory reuse with one device.  Here, it gets
the values that the tasks of the plan itself compute, so that passes, lowering and memory are
checked as well.  A finding names the op, the device and the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

from flow_core.comm.liveness import CircularWaitError, check_liveness
from flow_core.compiler.distribute.physical_graph import Physical
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select.candidates import NdSignature
from flow_core.frontend.job.function import AnyJob
from flow_core.ir.graph import Graph, Op, Value
from flow_core.observe.feeds import draw_variable, whole_batches
from flow_core.observe.isolated_run import IsolatedRun, same_bits
from flow_core.observe.matrix.captured import CapturedRun
from flow_core.observe.matrix.hazards import missing_waits
from flow_core.observe.oracle import OpTrial, Oracle, local_names, local_values
from flow_core.observe.parts import Whole, assemble
from flow_core.observe.rounding import difference, drift, epsilon, is_float, largest, over
from flow_core.observe.verdict import OpVerdict
from flow_core.plan import Plan
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import B, Partial
from flow_core.sharding.topology import Device

EVERY_STEP = -1
FUSED = "fused"
"""The type of ops that the pass which fuses elementwise ops makes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a plan."""

    # "circle", "missing wait", "overwritten", "replicas", "result", or a verdict of the oracle.
    kind: str
    op: str
    type: str
    line: str
    device: str  # the device, or several of them
    step: int  # the first step; -1 for what does not depend on the step
    text: str


@dataclass(slots=True)
class PlanCheck(Oracle):
    """The comparison of the tasks of a plan with one device."""

    plan: Plan = field(init=False)
    findings: list[Finding] = field(default_factory=list)
    # The devices of ops that are wrong.
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # The outputs of the tasks of the present step.
    seen: Mapping[Value, Any] = field(default_factory=dict)
    # The parts of variables after it, by name and device.
    parts_after: Mapping[tuple[str, Device], Any] = field(default_factory=dict)
    results: Sequence[Any] = ()  # the results of the first step

    @classmethod
    def of_plan(cls, job: AnyJob, plan: Plan, seed: int = 0) -> PlanCheck:
        """Return the check of a plan of a compiled job."""
        compiled = job.compile()
        physical = compiled.physical
        if not physical.layouts:
            physical = _on_one_device(compiled.optimized_logical, physical)
        found = cls.of(job, None, seed, None, physical)
        found.plan = plan
        found.rng = np.random.default_rng(seed)
        for name in found.values.keys() & found.session.declared.keys():
            rng = np.random.default_rng([seed, crc32(name.encode())])  # the same in each form
            found.values[name] = draw_variable(found.session.declared[name], rng)
        for c in found.copies.values():
            found.values[c.name] = found.values[c.variable][c.window].copy()
        return found

    def check(self, steps: int) -> list[Finding]:
        """Return what is wrong with the plan; an empty list if nothing is.

        Steps end at the first one in which something is wrong, as all later numbers depend on it.
        """
        self.findings += self._static()
        if any(finding.kind == "circle" for finding in self.findings):
            return self.findings
        one, many = self.single(), CapturedRun.of(self.session, self.plan, self.values)
        known = len(self.findings)
        for step in range(steps):
            self._step(one, many, step)
            if len(self.findings) > known:
                break
        return self.findings

    # ------------------------------------------------------------------------ without running

    def _static(self) -> Iterator[Finding]:
        plan, specs = self.plan, self.session.registry.ops
        try:
            check_liveness(plan)
        except CircularWaitError as error:
            first = error.circle[0]
            yield Finding("circle", first.waiting, "", first.line, "", EVERY_STEP, str(error.found))
            return
        for position, other in missing_waits(plan, specs):
            text = f"does not wait for {self._named(other)}, with which it shares memory"
            yield self._of_task("missing wait", position, EVERY_STEP, text)

    def _named(self, position: int) -> str:
        task = self.plan.tasks[position]
        return f"{task.type} {task.op!r}" + (f" at {task.line}" if task.line else "")

    def _of_task(self, kind: str, position: int, step: int, text: str) -> Finding:
        task = self.plan.tasks[position]
        return Finding(kind, task.op, task.type, task.line, str(task.device), step, text)

    # ------------------------------------------------------------------------------- one step

    def _step(self, one: IsolatedRun, many: CapturedRun, step: int) -> None:
        feeds = self.draw(step)
        before = many.variables.values() | self.held(many)
        one.variables.assign({k: v for k, v in before.items() if k in self.values})
        alone = one.run(feeds, step)
        self.seen = self._named_values(many.run(whole_batches(feeds, self.parts), step))
        self.results = self.results or many.results
        self.parts_after = {key: part for key, (_, part) in many.variables.parts().items()}
        self.findings += self._overwritten(many, step)
        self.compare(alone, self.seen, one, many, before, feeds, step)
        for verdict in self.found.values():
            if verdict.wrong:
                self.findings.append(self._of_op(verdict, step))
        self.findings += self._replicas(one, many, step)
        self.findings += self._results(many.results, step)

    def _named_values(self, seen: Mapping[Value, Any]) -> dict[Value, Any]:
        """Return the outputs of tasks that are values of the graph before the physical passes.

        A task of several merged ops has the name of the last one, and may return others, too.
        """
        types = self.physical.graph.types
        found: dict[Value, Any] = {}
        for task in self.plan.tasks:
            rows = [seen[Value(task.op, k)] for k in range(len(task.outputs))]
            wanted, order = types.get(task.op, ()), task.attrs.get("outputs", ())
            if task.type == FUSED and len(order) == len(rows) > 1:
                rows = [rows[order.index(max(order))]]
            if [x.shape for x in rows] == [t.shape for t in wanted]:
                found |= {Value(task.op, k): x for k, x in enumerate(rows)}
        return found

    def _overwritten(self, many: CapturedRun, step: int) -> Iterator[Finding]:
        for found in many.executable.overwritten:
            buffer = self.plan.buffers[found.buffer]
            text = f"reads {buffer.name} after its memory was overwritten"
            yield self._of_task("overwritten", found.task, step, text)

    def _of_op(self, verdict: OpVerdict, step: int) -> Finding:
        device = ", ".join(self.places.get(verdict.op, ())) or "a device"
        return Finding(
            verdict.verdict, verdict.op, verdict.type, verdict.line, device, step, verdict.note
        )

    def _replicas(self, one: IsolatedRun, many: CapturedRun, step: int) -> Iterator[Finding]:
        """Yield the devices whose copy of a variable differs from others, and is farther off."""
        copies = {c.variable for c in self.copies.values()}  # of the mirrored view: may differ
        held: dict[Any, dict[Device, Any]] = {}
        for (name, device), (region, array) in many.variables.parts().items():
            if name not in copies:
                held.setdefault((name, region), {})[device] = array
        wanted = one.variables.values()
        for (name, region), parts in held.items():
            first, *others = parts.values()
            if all(same_bits(first, part) for part in others):
                continue
            right = wanted[name][tuple(slice(low, high) for low, high in region)]
            errors = {device: drift(part, right) for device, part in parts.items()}
            worst = max(errors.values())
            devices = ", ".join(str(d) for d, error in errors.items() if error >= worst / 2)
            op = self._writer(name)
            text = f"variable {name!r} is not the same on all devices"
            line = str(self.graph.lines.get(op, ""))
            yield Finding("replicas", op, self.graph.ops[op].type, line, devices, step, text)

    def _writer(self, variable: str) -> str:
        """Return the op that overwrites a variable, or the variable."""
        for op in self.graph.ops.values():
            spec = self.session.registry.ops[op.type]
            if any(op.inputs[i].op == variable for i in spec.mutates if i < len(op.inputs)):
                return op.name
        return variable

    def _results(self, results: Sequence[Any], step: int) -> Iterator[Finding]:
        """Yield the results of a step that are not what the ops have computed."""
        for position, value, array in zip(
            self.plan.fetches, self.graph.results, results, strict=True
        ):
            layout = self.physical.layouts[value]
            local = local_values(self.graph, value, layout)
            if any(v not in self.seen for v in local) or not isinstance(array, np.ndarray):
                continue
            parts = [self.seen[v] for v in local]
            whole = assemble(layout, self.graph.type_of(value).shape, parts)
            bound = 8 * epsilon(array) * largest(whole.size) if is_float(array) else 0.0
            if array.shape != whole.array.shape or over(difference(whole.array, array), bound) > 1:
                op, device = self.graph.ops[value.op], self.plan.buffers[position].device
                line = str(self.graph.lines.get(op.name, ""))
                text = f"the step returns {value} as it was not computed"
                yield Finding("result", op.name, op.type, line, str(device), step, text)

    # --------------------------------------------------------------------------------- devices

    def explain(
        self,
        verdict: OpVerdict,
        op: Op,
        spec: OpSpec,
        pairs: list[tuple[Any, Any]],
        wholes: Mapping[Value, Whole],
        step: int,
        torn: tuple[int, int] | None,
    ) -> OpVerdict:
        """Find out why an op differs, and on which devices."""
        found = Oracle.explain(self, verdict, op, spec, pairs, wholes, step, torn)
        if found.wrong:
            self.places[op.name] = tuple(map(str, self._devices(op, spec, wholes, step)))
        return found

    def _devices(
        self, op: Op, spec: OpSpec, wholes: Mapping[Value, Whole], step: int
    ) -> Iterator[Device]:
        """Yield the devices on which the op's outputs, or what it overwrites, are wrong."""
        had = [wholes[v] for v in op.inputs]
        trial = OpTrial(self, op, spec, had, step)
        names = local_names(self.graph, op.name, op.placement)
        signature = self.physical.signatures[op.name]
        changed = [i for i in spec.mutates if i < len(op.inputs)]
        for rank, name in enumerate(names):
            device, wrong = op.placement.device(rank), False
            wanted: list[Any] | None = None
            for k, right in enumerate(trial.right):
                if k < len(signature.outputs):
                    sbp, part = signature.outputs[k], self.seen.get(Value(name, k))
                else:
                    i = changed[k - len(signature.outputs)]
                    sbp, part = signature.inputs[i], self.parts_after.get((op.inputs[i].op, device))
                if part is None:
                    continue
                layout = TensorLayout(op.placement, sbp)
                if any(isinstance(s, Partial) for s in sbp):
                    wanted = wanted or self._part(op, name, rank, had, step)
                    expected = wanted[k] if wanted else part
                else:
                    region = layout.region(right.shape, rank)
                    expected = right[tuple(slice(a, b) for a, b in region)]
                same = part.shape == expected.shape
                wrong |= not same or over(difference(expected, part), trial.bounds[k]) > 1
            if wrong:
                yield device

    def _part(self, op: Op, name: str, rank: int, had: Sequence[Whole], step: int) -> list[Any]:
        """Return what a part of an op computes from the parts of inputs that it should have.

        The list is empty if inputs are partial: their terms are not determined.
        """
        signature = self.physical.signatures[op.name]
        inputs = []
        for whole, sbp in zip(had, signature.inputs, strict=True):
            if any(isinstance(s, Partial) for s in sbp):
                return []
            region = TensorLayout(op.placement, sbp).region(whole.array.shape, rank)
            inputs.append(whole.array[tuple(slice(a, b) for a, b in region)])
        graph = self.physical.graph
        single = self.alone(graph.ops[name], graph.types[name], self.graph.origin(op.name))
        return single.run(inputs, step)


def _on_one_device(graph: Graph, physical: Physical) -> Physical:
    """Return the physical graph of a single device with the layouts of all values, which are B."""
    layouts, signatures = {}, {}
    for name, op in graph.ops.items():
        count = len(graph.types[name])
        for i in range(count):
            layouts[Value(name, i)] = TensorLayout(op.placement, (B,))
        signatures[name] = NdSignature(((B,),) * len(op.inputs), ((B,),) * count)
    return replace(physical, layouts=layouts, signatures=signatures)
