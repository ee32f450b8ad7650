"""The oracle, which compares a job's plan with the plan for one device, op by op.

Both plans run on the same inputs and weights, without fusion and without memory reuse, so that
every logical value can be assembled from its parts and compared.  An op whose value differs runs
again, alone and on one device, on the inputs that it received; the remaining difference is the
op's own error.  The bound on rounding errors is the change of the result when the inputs are
perturbed by single roundings, times a factor for the length of sums.  An error above the bound
means that a rule is wrong, or that the boxing is wrong if the op's parts compute a correct result
from inputs in the layouts of the op's SBP signature.

The plan for several devices that runs without fusion and memory reuse is called the observed plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import JobError
from flow_core.compiler.distribute.physical_graph import Physical, local_origins, to_physical
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.lower.tasks import lower
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.reshard.plugin_steps import BoxingMethods
from flow_core.compiler.select import Problem
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import Graph, Op, Origin, TensorType, Value
from flow_core.observe.copies import Copy, overwritten_copies, with_copies
from flow_core.observe.feeds import draw_feeds, draw_variable, micro_batches, whole_batches
from flow_core.observe.isolated_run import (
    IsolatedRun,
    SingleOp,
    same_bits,
    simulate,
    simulate_graph,
    states,
)
from flow_core.observe.parts import Whole, assemble, take_apart
from flow_core.observe.rounding import (
    allowed,
    as_type,
    difference,
    disturb,
    drift,
    epsilon,
    explained,
    is_float,
    largest,
    over,
    relative_error,
)
from flow_core.observe.sensitivity import moved
from flow_core.observe.verdict import (
    INHERITED,
    ROUNDING,
    WRONG_BOXING,
    WRONG_RULE,
    OpVerdict,
    Verdict,
)
from flow_core.plugins.specs import OpSpec, SbpContext
from flow_core.sharding.sbp import Partial, Split
from flow_core.sharding.topology import Placement

DISTURBANCES = 4
"""The number of perturbations of an op's inputs that estimate the effect of rounding."""

SEED_OF_DISTURBANCES = 20

SLACK = 32
"""Factor on the bound: the random partial sums that test a rule may be larger than the partial sums
on which the bound is based."""


def verify(
    job: AnyJob,
    devices: int | None = None,
    *,
    steps: int = 2,
    seed: int = 0,
    feeds: Sequence[Sequence[Array]] | None = None,
) -> Verdict:
    """Compare a job's plan with the plan for one device, op by op.

    Args:
        job: the job function; its session's variables are not changed.
        devices: number of devices over which to distribute a job that is placed on one device.
        steps: how many steps to run.
        seed: seed of the random inputs and of the noise on constant weights.
        feeds: for each step, arrays in the order of the job's inputs; random arrays if None.

    Raises:
        JobError: the job is placed on one device, and `devices` is None.
    """
    return Oracle.of(job, devices, seed, feeds).run(steps)


@dataclass(slots=True)
class Oracle:
    """The simulations of a job on one and on several devices, and their comparison so far."""

    job: AnyJob
    session: Session
    graph: Graph  # before it is distributed
    physical: Physical  # of all devices
    inputs: tuple[str, ...]  # the names of the fed values
    options: CompileOptions  # of the plans that are simulated
    values: dict[str, Any]  # the logical values of the variables at the first step
    rng: np.random.Generator  # draws the feeds
    spread: bool  # whether the job is placed on one device, and `physical` moves it to several
    feeds: Sequence[Sequence[Any]] | None = None  # the arrays of each step; None to draw them
    # The copies of variables that devices overwrite separately, by the op's result.
    copies: Mapping[Value, Copy] = field(default_factory=dict)
    found: dict[str, OpVerdict] = field(default_factory=dict)  # the verdicts so far, by op
    # The ops and variables whose bits differ from those of one device.
    differing: set[str] = field(default_factory=set)
    repeatable: bool = True  # whether a second run has given the same bits
    as_planned: bool = True  # whether the job's plan computes what the observed one does
    drift: float = 0.0  # the largest relative difference between these two
    moved: float = 0.0  # how far roundings alone move the results

    @classmethod
    def of(
        cls,
        job: AnyJob,
        devices: int | None,
        seed: int,
        feeds: Sequence[Sequence[Array]] | None,
        physical: Physical | None = None,
    ) -> Self:
        """Return the comparison of a job, with drawn variables; distribute the job if necessary."""
        compiled = job.compile()
        session = job.active_session()
        graph, physical, spread = compiled.optimized_logical, physical or compiled.physical, False
        if not physical.layouts:
            graph, spread = _spread(job, graph, devices), True
            registry = session.registry
            problem = Problem(graph, registry.ops, host_numbers=registry.host_numbers)
            methods = BoxingMethods.of(session.registry)
            physical = to_physical(problem, str(job.config.get("sbp_selector")), methods)
        rng = np.random.default_rng(seed)
        names = [op.name for op in graph.of_type("variable")]
        values = {name: draw_variable(session.declared[name], rng) for name in names}
        options = CompileOptions(
            seed=int(job.config.get("random_seed") or 0),
            workers=session.settings.stream_threads,
            budget=session.budget,
        )
        copies = overwritten_copies(graph, session.registry.ops)
        values |= {c.name: values[c.variable][c.window].copy() for c in copies.values()}
        return cls(
            job, session, graph, physical, compiled.inputs, options, values, rng, spread, feeds,
            copies,
        )  # fmt: skip

    # --------------------------------------------------------------------- running

    def run(self, steps: int) -> Verdict:
        """Run steps on one and on several devices, and return the verdict."""
        one, many, again = self.single(), self.several(), self.several()
        real, apart, observed = self._real(), self._apart(), one if self.spread else many
        drawn = []
        for step in range(steps):
            feeds = self.draw(step)
            drawn.append(feeds)
            before = many.variables.values() | self.held(many)
            alone, together = one.run(feeds, step), many.run(feeds, step)
            self.compare(alone, together, one, many, before, feeds, step)
            self._repeat(again.run(feeds, step), together)
            seen = alone if self.spread else together
            whole = whole_batches(feeds, self.parts)
            found = real.run(whole, step)
            self._check_real(found, seen, real, observed)
            if apart is not None:
                self._check_shared(found, apart.run(whole, step), real, apart)
        self._check_drift(drawn)
        devices = dict.fromkeys(str(op.placement) for op in self.graph.ops.values())
        return Verdict(
            job=self.job.name,
            line=str(self.job.line or ""),
            devices=tuple(devices),
            steps=steps,
            ops=tuple(self.found[name] for name in self.graph.ops if name in self.found),
            repeatable=self.repeatable,
            as_planned=self.as_planned,
            drift=self.drift,
            moved=self.moved,
            spread=self.spread,
        )

    @property
    def parts(self) -> int:
        """The number of micro-batches of a step."""
        return self.job.compile().plan.micro_batches

    def draw(self, step: int) -> list[Array]:
        """Return the feeds of a step, by micro-batch."""
        if self.feeds is None:
            return draw_feeds(self.graph, self.inputs, self.rng)
        return micro_batches(self.feeds[step], self.parts)

    def single(self) -> IsolatedRun:
        graph = on_one_device(with_copies(self.graph, self.copies))
        return simulate_graph(self.session, graph, self.inputs, self.values, self.options, {})

    def several(self) -> IsolatedRun:
        """Return a run on all devices, without passes and without shared memory."""
        physical = self.physical
        shards = {name: (s.variable, s.region) for name, s in physical.shards.items()}
        return simulate_graph(
            self.session, physical.graph, self.inputs, self.values, self.options, shards
        )

    def _real(self) -> IsolatedRun:
        """Return a run of the plan that the job uses."""
        compiled = self.job.compile()
        results = compiled.physical.graph.results  # their names are those before the last passes
        return simulate(self.session, compiled.plan, self.values, results)

    def _apart(self) -> IsolatedRun | None:
        """Return a run of the job's plan in which no devices share memory.

        Return None if the plan already has separate memory for each device.
        """
        compiled = self.job.compile()
        plan, physical = compiled.plan, compiled.physical
        if not any(buffer.home for buffer in plan.buffers):
            return None
        registry = self.session.registry
        apart = lower(compiled.graph, registry, compiled.inputs, plan.job, self.options)
        apart = replace(apart, shards=plan.shards, micro_batches=plan.micro_batches)
        return simulate(self.session, apart, self.values, physical.graph.results)

    def _repeat(self, again: Mapping[Value, Array], first: Mapping[Value, Array]) -> None:
        same = all(same_bits(array, first[value]) for value, array in again.items())
        self.repeatable = self.repeatable and same

    def _check_real(
        self,
        results: Mapping[Value, Array],
        seen: Mapping[Value, Array],
        real: IsolatedRun,
        observed: IsolatedRun,
    ) -> None:
        """Measure how far passes change the results; passes may reorder roundings."""
        pairs = [(x, seen[v]) for v, x in results.items() if v in seen]
        both = (*pairs, *states(real.variables, observed.variables))
        self.drift = max([self.drift, *(drift(found, wanted) for found, wanted in both)])

    def _check_drift(self, feeds: Sequence[Sequence[Array]]) -> None:
        """Decide whether roundings, which the program may amplify, explain the drift."""
        types = (type_ for row in self.graph.types.values() for type_ in row)
        if self.drift > allowed(types):
            shown = self.job.compile().physical.graph.results
            self.moved = moved(self.observed, self.values, feeds, shown)
            self.as_planned = self.as_planned and explained(self.drift, self.moved)

    def observed(self, values: Mapping[str, Array]) -> IsolatedRun:
        """Return a run of the observed plan, which is compiled without passes, on given weights."""
        oracle = replace(self, values=dict(values))
        return oracle.single() if self.spread else oracle.several()

    def _check_shared(
        self,
        results: Mapping[Value, Array],
        wanted: Mapping[Value, Array],
        real: IsolatedRun,
        apart: IsolatedRun,
    ) -> None:
        """Check that sharing memory between devices does not change a bit of the results."""
        pairs = [(x, wanted[v]) for v, x in results.items()]
        both = (*pairs, *states(real.variables, apart.variables))
        self.as_planned = self.as_planned and all(same_bits(a, b) for a, b in both)

    # ------------------------------------------------------------------- comparing

    def alone(self, op: Op, types: tuple[TensorType, ...], origin: Origin) -> SingleOp:
        """Return an op by itself."""
        return SingleOp(self.session, self.options, op, types, origin)

    def compare(
        self,
        alone: Mapping[Value, Array],
        together: Mapping[Value, Array],
        one: IsolatedRun,
        many: IsolatedRun,
        before: Mapping[str, Array],
        feeds: Sequence[Array],
        step: int,
    ) -> None:
        """Record the verdicts of one step; a worse verdict replaces that of an earlier step."""
        wholes = {Value(n, 0): Whole.of(x) for n, x in zip(self.inputs, feeds, strict=True)}
        states = {**self.values, **before}
        wholes |= {Value(n, 0): Whole.of(x) for n, x in states.items()}
        wholes |= {value: wholes[Value(copy.name, 0)] for value, copy in self.copies.items()}
        after = (one.variables.values(), many.variables.values() | self.held(many))
        for op in self.graph.ops.values():
            spec = self.session.registry.ops[op.type]
            if op.type in ("input", "variable") or op.output() in self.copies:
                continue
            outputs = [Value(op.name, i) for i in range(len(self.graph.types[op.name]))]
            for value in outputs:
                wholes[value] = self._whole(value, together, wholes)
            pairs = [(alone[v], wholes[v].array) for v in outputs]
            changed = [self._state(op.inputs[i]) for i in spec.mutates if i < len(op.inputs)]
            pairs += [(after[0][name], after[1][name]) for name in changed]
            if not all(same_bits(*pair) for pair in pairs):
                self.differing.update((op.name, *changed))
            self._judge(op, spec, pairs, wholes, step)

    def _state(self, value: Value) -> str:
        """Return the name of the variable, or of its copy, that an op overwrites."""
        return self.copies[value].name if value in self.copies else value.op

    def held(self, many: IsolatedRun) -> dict[str, Any]:
        """Return the values of the per-device copies of variables."""
        parts = many.variables.parts() if self.copies else {}
        return {c.name: parts[c.variable, c.device][1] for c in self.copies.values()}

    def _whole(
        self, value: Value, together: Mapping[Value, Array], wholes: Mapping[Value, Whole]
    ) -> Whole:
        layout = self.physical.layouts[value]
        local = self.physical.passed.get(value) or local_values(self.graph, value, layout)
        op = self.graph.ops[value.op]
        reference = self.session.registry.ops[op.type].reference
        # the parts of variables and fed values are not among the observed values
        if reference and any(v not in together for v in local):
            results = reference(*(wholes[v].exact for v in op.inputs), **op.attrs)
            exact = results[value.index] if isinstance(results, tuple) else results
            array = as_type(exact, self.graph.type_of(value).dtype.numpy)
            if not is_float(array):
                return Whole.of(array)
            own = epsilon(array)
            unit = max([own, *(wholes[v].unit for v in op.inputs)])
            return Whole(array, np.abs(array) * (unit / own), exact, unit=unit)
        parts = [together[v] for v in local]
        return assemble(layout, self.graph.type_of(value).shape, parts)

    def _judge(
        self,
        op: Op,
        spec: OpSpec,
        pairs: list[tuple[Any, Any]],
        wholes: Mapping[Value, Whole],
        step: int,
    ) -> None:
        verdict = self.found.get(op.name) or OpVerdict(
            op.name,
            op.type,
            str(self.graph.lines.get(op.name, "")),
            str(self.physical.signatures[op.name]),
        )
        split = [wholes[Value(op.name, i)] for i in range(len(self.graph.types[op.name]))]
        torn = next((w.disagreeing for w in split if w.disagreeing), None)
        if torn or not all(same_bits(*pair) for pair in pairs):
            error = max((relative_error(*pair) for pair in pairs), default=0.0)
            first = verdict.step if verdict.step >= 0 else step
            verdict = replace(verdict, error=max(error, verdict.error), step=first)
            if not verdict.wrong:
                verdict = self.explain(verdict, op, spec, pairs, wholes, step, torn)
        self.found[op.name] = verdict

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
        """Find out why an op differs: run the op alone, on the inputs that it received."""
        had = [wholes[v] for v in op.inputs]
        if any(whole.disagreeing for whole in had):  # the correct result is not defined
            return replace(verdict, verdict=INHERITED)
        trial = OpTrial(self, op, spec, had, step)
        together = [pair[1] for pair in pairs]
        own, note = trial.own_error(together)
        own = max(own, verdict.own)
        if torn:
            note = f"devices {torn[0]} and {torn[1]} hold different values of a B tensor"
        elif own <= 1:
            inherited = own == 0 and any(v.op in self.differing for v in op.inputs)
            return replace(verdict, verdict=INHERITED if inherited else ROUNDING, own=own)
        kind = WRONG_RULE if trial.rule_is_wrong() else WRONG_BOXING
        return replace(verdict, verdict=kind, own=own, note=note)


# ------------------------------------------------------------------------------ one op alone


class OpTrial:
    """One op that runs alone: on one device, or in parts according to its SBP signature."""

    def __init__(
        self, oracle: Oracle, op: Op, spec: OpSpec, had: Sequence[Whole], step: int
    ) -> None:
        self.oracle, self.op, self.spec, self.had, self.step = oracle, op, spec, had, step
        self.arrays = [whole.array for whole in had]
        self.types = oracle.graph.types[op.name]
        single = replace(op, placement=op.placement.only(0), sbp=(), control=())
        self.single = oracle.alone(single, self.types, oracle.graph.origin(op.name))
        self.right = self.single.run(self.arrays, step)
        self.bounds = self._bounds()

    def own_error(self, together: Sequence[Array]) -> tuple[float, str]:
        """Return the largest ratio of error to bound, and a description of where it occurs."""
        worst, note = 0.0, ""
        for k, (right, found) in enumerate(zip(self.right, together, strict=True)):
            error = difference(right, found)
            ratio = over(error, self.bounds[k])
            if ratio > worst:
                worst, note = ratio, _where(k, right, found, error, self.bounds[k])
        return worst, note

    def _bounds(self) -> list[float]:
        """Return, for each output, the bound on errors due to rounding."""
        moved = [0.0] * len(self.right)
        if any(is_float(x) for x in self.arrays):
            rng = np.random.default_rng(SEED_OF_DISTURBANCES)
            for _ in range(DISTURBANCES):
                disturbed = [disturb(w.array, w.size, rng) for w in self.had]
                results = self.single.run(disturbed, self.step)
                for k, (a, b) in enumerate(zip(self.right, results, strict=True)):
                    if is_float(a):
                        moved[k] = max(moved[k], float(difference(a, b).max(initial=0.0)))
        factor = 8 + 2 * sum_length(self.op, self.spec, self.oracle.graph) ** 0.5
        return [
            factor * (m + epsilon(r) * largest(r)) if is_float(r) else 0.0
            for m, r in zip(moved, self.right, strict=True)
        ]

    def rule_is_wrong(self) -> bool:
        """Return whether the op's parts are wrong, given inputs in the signature's layouts."""
        oracle, op = self.oracle, self.op
        if self.spec.is_per_device(op.placement):  # the op passes parts through unchanged
            return False
        signature = oracle.physical.signatures[op.name]
        layouts = [TensorLayout(op.placement, sbp) for sbp in signature.inputs]
        rng = np.random.default_rng(SEED_OF_DISTURBANCES)
        inputs = [take_apart(*row, rng) for row in zip(layouts, self.arrays, strict=True)]
        names = local_names(oracle.graph, op.name, op.placement)
        results = []
        for rank, name in enumerate(names):
            local = oracle.physical.graph.ops[name]
            types = oracle.physical.graph.types[name]
            part = oracle.alone(local, types, oracle.graph.origin(op.name))
            results.append(part.run([parts[rank] for parts in inputs], self.step))
        changed = [signature.inputs[i] for i in self.spec.mutates if i < len(op.inputs)]
        layouts = [TensorLayout(op.placement, sbp) for sbp in (*signature.outputs, *changed)]
        for k, layout in enumerate(layouts):
            whole = assemble(layout, self.right[k].shape, [r[k] for r in results])
            wrong = over(difference(self.right[k], whole.array), SLACK * self.bounds[k]) > 1
            if wrong or whole.disagreeing:
                return True
        return False


# ------------------------------------------------------------------------------------ placing


def on_one_device(graph: Graph) -> Graph:
    """Place a graph on one device: of the device type that all ops share, else a CPU."""
    types = {op.placement.device_type for op in graph.ops.values()}
    kind = types.pop() if len(types) == 1 else "cpu"
    return _placed(graph, Placement.parse(kind, "0:0"))


def _placed(graph: Graph, placement: Placement) -> Graph:
    ops = {n: replace(op, placement=placement, sbp=()) for n, op in graph.ops.items()}
    return replace(graph, ops=ops)


def _spread(job: AnyJob, graph: Graph, devices: int | None) -> Graph:
    """Distribute a graph that is placed on one device over several devices."""
    if devices is None or devices < 2:
        raise JobError(
            f"verifying job {job.name!r}",
            at=job.line,
            found="a job on one device",
            allowed="a job on several devices, or a number of devices over which to distribute it",
            hint="run `flow verify script.py:job --devices 4`",
        )
    kind = next(iter(graph.ops.values())).placement.device_type
    return _placed(graph, Placement.parse(kind, f"0:0-{devices - 1}"))


def local_names(graph: Graph, name: str, placement: Placement) -> list[str]:
    """Return the names of a logical op's parts in the physical graph."""
    return list(map(str, local_origins(graph, name, placement)))


def local_values(graph: Graph, value: Value, layout: TensorLayout) -> list[Value]:
    """Return the parts of a logical value in the physical graph."""
    names = local_names(graph, value.op, layout.placement)
    return [Value(name, value.index) for name in names]


# ------------------------------------------------------------------------------------ in words


def sum_length(op: Op, spec: OpSpec, graph: Graph) -> int:
    """Return the number of terms of the op's sums: the size of its reduced axes.

    These are the axes whose split gives a partial output according to the op's SBP rules.
    """
    inputs = graph.input_types(op)
    context = SbpContext(inputs, graph.types[op.name], op.attrs)
    axes: dict[int, set[int]] = {}
    for rule in spec.sbp(context):
        if any(isinstance(sbp, Partial) for sbp in rule.outputs):
            for i, sbp in enumerate(rule.inputs):
                if isinstance(sbp, Split):
                    axes.setdefault(i, set()).add(sbp.axis)
    return max((prod(inputs[i].shape[a] for a in found) for i, found in axes.items()), default=1)


def _where(k: int, right: Array, found: Array, error: Array, bound: float) -> str:
    """Describe the element with the largest error."""
    index = np.unravel_index(int(np.argmax(error)), error.shape) if error.size else ()
    place = f"output {k}" + (f" at {tuple(map(int, index))}" if index else "")
    allowed = f"rounding explains {bound:.2g}" if bound else "rounding explains nothing"
    return f"{place}: {found[index]} instead of {right[index]}; {allowed}"
