"""A compiled job as plain data, which reports, comparisons and pages take as input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flow_core.base.decoding import Decoder, Mismatch, parsed, shown
from flow_core.base.errors import PlanError
from flow_core.base.formats.regular_files import open_regular
from flow_core.compiler.pass_list import ListedPass, pass_list
from flow_core.compiler.request import Compiled
from flow_core.compiler.select.hints import divided_weights, relaxations
from flow_core.compiler.select.price import microseconds
from flow_core.compiler.select.problem import Problem
from flow_core.frontend.job.function import AnyJob
from flow_core.ir.graph import Graph, Op, Value
from flow_core.observe.tables import count_bytes
from flow_core.passes.base import PassTiming
from flow_core.plan import Plan, decode_plan, unreadable
from flow_core.plugins.machine import fast_products
from flow_core.plugins.order import order_reasons
from flow_core.sharding.sbp import NdSbp, format_nd_sbp

FORMAT = "flow plan 1"
"""The name and version of the format of a saved document."""


@dataclass(frozen=True, slots=True)
class OpRow:
    """A logical op."""

    name: str  # unique
    type: str  # for a fused group, the types of its members
    inputs: tuple[Value, ...]  # that the op reads
    # For each input, the text form of the SBP in which the op reads the input.
    wants: tuple[str, ...]
    outputs: tuple[str, ...]  # the types of the outputs, as text
    placement: str  # as text
    sbp: tuple[str, ...]  # for each output, the text form of its SBP
    line: str  # the source line of the user's program, empty if unknown


@dataclass(frozen=True, slots=True)
class PassRow:
    """A pass or stage of compilation."""

    name: str  # of the pass or stage
    before: int  # the number of ops before it
    after: int  # the number of ops after it
    seconds: float
    stage: str = ""  # the stage of a pass; "idle" follows if the job does not run the pass
    plugin: str = ""  # that registered a pass
    # The numbers of added (+), removed (-) and rewritten (~) ops, by type.
    changes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # the options of a pass that differ from their defaults
    # Why a pass does not run earlier in its stage; empty if registration alone decides.
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """All reportable data of a compiled job."""

    job: str
    kind: str  # "train" or "predict"
    line: str  # of the job's definition
    traced: int  # the number of traced ops
    ops: tuple[OpRow, ...]
    origins: Mapping[str, str]  # maps the op of each task to its logical op
    passes: tuple[PassRow, ...]  # the passes and stages of compilation, in order
    plan: Plan
    # The report on how signatures were selected for several devices, as pairs of texts.
    selection: tuple[tuple[str, ...], ...] = ()
    # For each evaluated SBP hint of the program: the request, the plan's cost without the hint, the
    # saving, and the additional memory.
    hints: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()  # sentences about layers that are model parallel without a hint
    # Texts of the warnings that were issued while the job was compiled.
    warnings: tuple[str, ...] = ()
    fast: str = ""  # 16-bit type whose products are fast on the devices of the job; empty for none

    def to_json(self) -> str:
        """Encode the document as JSON, which `from_json` decodes."""
        names = (
            "job",
            "kind",
            "line",
            "traced",
            "origins",
            "selection",
            "hints",
            "notes",
            "warnings",
            "fast",
        )
        fields = {n: getattr(self, n) for n in names}
        rows = {n: [asdict(row) for row in getattr(self, n)] for n in ("ops", "passes")}
        return json.dumps({"format": FORMAT, **fields, **rows, "plan": self.plan.to_data()})

    @classmethod
    def from_json(cls, text: str | bytes) -> PlanDocument:
        """Decode a document from JSON; raise `PlanError` if the text is not a document."""
        try:
            doc: PlanDocument = _DECODER.decode(cls, _content(parsed(text)))
            _check_ops(doc.ops)
        except Mismatch as error:
            raise unreadable(error) from error
        return doc

    @classmethod
    def read(cls, path: Path) -> PlanDocument:
        """Read a document from a file.

        Raises `PlanError` if the path does not name a regular file, or the file is not a document.
        """
        try:
            with open_regular(path) as file:
                text = file.read()
            return cls.from_json(text)
        except OSError as error:
            raise unreadable(Mismatch(error, "a file")).with_context(
                attempted=f"reading {path}"
            ) from error
        except PlanError as error:
            raise error.with_context(attempted=f"reading the saved plan {path}") from error


def _value(data: Any) -> Value:
    """Decode a value, which JSON represents as a list of an op name and an output number."""
    name, index = _DECODER.decode(tuple[str, int], data)
    return Value(name, index)


_DECODER = Decoder(types={Plan: decode_plan, Value: _value})


def _content(data: Any) -> Any:
    """Check the format name and version of a document, and return the document's content."""
    found = data.get("format", "another kind of JSON") if isinstance(data, dict) else "no object"
    if found != FORMAT:
        raise Mismatch(found if isinstance(found, str) else shown(found), repr(FORMAT))
    return {name: value for name, value in data.items() if name != "format"}


def _check_ops(ops: Sequence[OpRow]) -> None:
    """Check that each input has a wanted layout and is an output of an op of the document."""
    outputs = {op.name: len(op.sbp) for op in ops}
    for i, op in enumerate(ops):
        if len(op.wants) != len(op.inputs):
            allowed = f"{len(op.inputs)}, one per input"
            raise Mismatch(f"{len(op.wants)} layouts", allowed).within(f".ops[{i}].wants")
        for value in op.inputs:
            if value.index not in range(outputs.get(value.op, 0)):
                raise Mismatch(shown(str(value)), "an output of an op").within(f".ops[{i}].inputs")


def document(job: AnyJob, hints: int = 0) -> PlanDocument:
    """Return the document of a job; compile the job if needed.

    Args:
        hints: how many of the job's SBP hints to evaluate; each one takes another SBP selection.
    """
    compiled = job.compile()
    graph = compiled.optimized_logical if compiled.layouts else compiled.graph
    report, searched = compiled.physical.report, compiled.searched
    selection = () if report is None else (*report.rows(), ("model", compiled.plan.costs))
    doc = PlanDocument(
        job=job.name,
        kind=job.kind,
        line=str(job.line or ""),
        traced=len(compiled.logical),
        ops=tuple(_op_row(compiled, graph, op) for op in graph.ops.values()),
        origins={
            task.op: str(compiled.graph.origin(task.op).unsharded) for task in compiled.plan.tasks
        },
        passes=tuple(_pass_rows(compiled)),
        plan=compiled.plan,
        selection=(*selection, *(() if searched is None else searched.rows())),
        fast=fast_products(
            compiled.request.registry, {op.placement.device_type for op in graph.ops.values()}
        ),
    )
    return _with_hints(doc, compiled, hints) if hints else doc


def _pass_rows(compiled: Compiled) -> Iterator[PassRow]:
    """Yield rows of the stages and of all registered passes, in order of execution."""
    listed = pass_list(compiled.request)
    reasons = order_reasons([row.spec for row in listed])
    timings = {t.name: t for t in compiled.timings}
    for physical, stage in ((False, "to_physical"), (True, "lower")):
        for row in listed:
            if (row.spec.stage == "physical") == physical:
                yield _pass_row(row, timings.get(row.spec.name), reasons[row.spec.name])
        t = timings[stage]
        yield PassRow(stage, t.before, t.after, t.seconds)


def _pass_row(row: ListedPass, timing: PassTiming | None, order: tuple[str, ...]) -> PassRow:
    """Return the row of a pass; without statistics, the job does not run the pass."""
    name, stage, plugin = row.spec.name, row.spec.stage, row.origin.plugin
    if timing is None:
        return PassRow(name, 0, 0, 0.0, f"{stage}, idle", plugin, order=order)
    changes = tuple(
        f"{sign}{count} {type_}"
        for sign, counts in (("+", timing.added), ("-", timing.removed), ("~", timing.rewritten))
        for type_, count in sorted(counts.items())
    )
    options = tuple(f"{key}={value!r}" for key, value in row.options().items())
    sizes = timing.before, timing.after, timing.seconds
    return PassRow(name, *sizes, stage, plugin, changes, options, order)


SECONDS_PER_HINT = 5.0
"""The search budget, in nominal seconds, for selecting the plan without a hint."""


def _with_hints(doc: PlanDocument, compiled: Compiled, most: int) -> PlanDocument:
    """Add what dropping each hint changes, and which layers without a hint are model parallel."""
    physical = compiled.physical
    if physical.problem is None or physical.report is None:
        return doc
    problem = replace(physical.problem, seconds=min(physical.problem.seconds, SECONDS_PER_HINT))
    written = {op.name for op in compiled.logical.ops.values() if "/grad/" not in op.name}
    divided = divided_weights(problem, physical.signatures)
    divided = {name: nd for name, nd in divided.items() if not problem.graph.ops[name].sbp}
    rows, causes = [], dict[str, str]()
    for found in relaxations(problem, physical.report.cost, most=most, written=written):
        hint = f"{found.hint}, and {found.more} more there" if found.more else str(found.hint)
        saved = f"saves {microseconds(found.saved)}" if found.saved > 0 else "saves nothing"
        more = f"takes {count_bytes(found.nbytes)} more per device" if found.nbytes > 0 else ""
        rows.append((hint, f"without it: {found.cost}", saved, more))
        free = divided_weights(problem, found.selection.signatures)
        causes.update(dict.fromkeys(divided.keys() - free.keys(), f"since {found.hint}"))
    notes = tuple(_notes(problem, divided, causes))
    return replace(doc, hints=tuple(rows), notes=notes)


def _notes(
    problem: Problem, divided: Mapping[str, NdSbp], causes: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence per layer that a hint elsewhere divides, and one about all others."""
    cheaper = [name for name in divided if name not in causes]
    for name in (*(n for n in divided if n in causes), *cheaper[:1]):
        cause = causes.get(name, "which costs less than data parallelism")
        more = (
            f"; so for {len(cheaper) - 1} more weights" if name in cheaper and cheaper[1:] else ""
        )
        at = problem.graph.lines.get(name)
        part = format_nd_sbp(divided[name])
        yield (
            f"{name!r} at {at} has no hint, but each device computes with its part {part} "
            f"(model parallel), {cause}{more}"
        )


def _op_row(compiled: Compiled, graph: Graph, op: Op) -> OpRow:
    return OpRow(
        name=op.name,
        type=_kind(op),
        inputs=op.inputs,
        wants=_wants(compiled, op),
        outputs=tuple(map(str, graph.types[op.name])),
        placement=str(op.placement),
        sbp=tuple(_sbp(compiled, Value(op.name, i)) for i in range(len(graph.types[op.name]))),
        line=str(graph.lines.get(op.name, "")),
    )


def _wants(compiled: Compiled, op: Op) -> tuple[str, ...]:
    signature = compiled.physical.signatures.get(op.name)
    if signature is None:
        return ("B",) * len(op.inputs)
    return tuple(map(format_nd_sbp, signature.inputs))


def _kind(op: Op) -> str:
    if op.type != "fused":
        return op.type
    return f"fused({' '.join(dict.fromkeys(row[0] for row in op.attrs['body']))})"


def _sbp(compiled: Compiled, value: Value) -> str:
    """Return the text form of a value's SBP; on a single device, it says so instead."""
    layout = compiled.layouts.get(value)
    return "B" if layout is None else format_nd_sbp(layout.sbp)
