"""Budgets: the numbers of a job's plan that a change may not exceed, kept in a TOML file.

A budget is a table of numbers in sections.  Those of `LIMITS` are compared with a plan; the others
state which values these numbers consist of, so that a report can name what was added.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flow_core.base.decoding import Decoder, Mismatch
from flow_core.base.errors import PlanError
from flow_core.base.formats.regular_files import open_regular
from flow_core.observe.document import PlanDocument
from flow_core.observe.summary.op_times import by_class, class_of, task_seconds
from flow_core.observe.summary.screen import place
from flow_core.observe.tables import Row, Table, count_bytes, duration
from flow_core.plan import Plan, Transfer

Numbers = Mapping[str, Mapping[str, float]]
"""The numbers of a plan by section and name."""

STEP, COLLECTIVES, CLASSES, TRANSFERS, PEAK, VARIABLES = (
    "step", "collectives", "predicted_us", "transfer_bytes", "peak_bytes", "variables",
)  # fmt: skip
LIMITS = (STEP, COLLECTIVES, CLASSES)
PARTS = {"arena_bytes": PEAK, "moved_bytes": TRANSFERS, "variable_bytes": VARIABLES}
"""The sections that say what a number of a step consists of."""
MOST_CAUSES = 3
ROUNDING = 1e-6
"""The relative difference of predicted times that is not reported."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a job."""

    devices: str  # the devices of the plan, as text
    numbers: Numbers  # the largest numbers allowed


@dataclass(frozen=True, slots=True)
class Change:
    """A number that differs from the budget."""

    job: str
    section: str
    name: str
    allowed: float  # the budget
    found: float  # the number of the plan
    # If the number exceeds the budget: the largest parts that are new, with their source lines.
    causes: tuple[str, ...] = ()

    @property
    def is_excess(self) -> bool:
        """Whether the number is larger than its budget."""
        return self.found > self.allowed * (1 + ROUNDING)


def budget_of(doc: PlanDocument) -> Budget:
    """Return the budget that a plan just meets."""
    plan = doc.plan
    largest = max(plan.arenas, key=lambda arena: arena.nbytes)
    variables = _variables(plan)
    moved, collectives = Counter[str](), Counter[str]()
    for entry in plan.ledger:
        if entry.nbytes:
            moved[_way(entry)] += entry.nbytes
            collectives.update(entry.steps)
    peak = Counter[str]()
    for nbytes, name, _ in largest.owners:
        peak[name] += nbytes
    times = {c.name: round(c.seconds * 1e6, 3) for c in by_class(plan)}
    step = {
        "arena_bytes": largest.nbytes,
        "variable_bytes": sum(variables.values()),
        "moved_bytes": plan.bytes_per_step,
        "tasks": len(plan.tasks),
        "predicted_us": round(sum(times.values()), 3),
    }
    numbers: Numbers = {
        STEP: step,
        COLLECTIVES: collectives,
        CLASSES: times,
        TRANSFERS: moved,
        PEAK: peak,
        VARIABLES: variables,
    }
    return Budget(" ".join(str(arena.device) for arena in plan.arenas), numbers)


def _variables(plan: Plan) -> dict[str, int]:
    """Return the bytes of the variables on the device that holds most of them, the largest first.

    A shard has the name of its variable.
    """
    held: dict[str, Counter[str]] = {}
    for name, i in plan.variables.items():
        buffer = plan.buffers[i]
        if not buffer.home:
            variable = plan.shards[name][0] if name in plan.shards else name
            held.setdefault(str(buffer.device), Counter())[variable] += buffer.type.nbytes
    return dict(max(held.values(), key=Counter.total, default=Counter[str]()).most_common())


def _way(entry: Transfer) -> str:
    return f"{entry.value}: {entry.source} -> {entry.target}"


# ---------------------------------------------------------------------------------------- file


def write_budgets(path: Path, budgets: Mapping[str, Budget]) -> None:
    """Write the budgets of jobs; replace those of these jobs in an existing file."""
    kept = read_budgets(path) if path.exists() else {}
    lines = ["# Written by flow plan --check FILE --update.  A number is the largest one allowed."]
    for job, budget in sorted({**kept, **budgets}.items()):
        lines += ["", f"[{_key(job)}]", f"devices = {_quoted(budget.devices)}"]
        for section, numbers in budget.numbers.items():
            if numbers:
                lines += ["", f"[{_key(job)}.{section}]"]
                lines += [f"{_key(name)} = {number}" for name, number in numbers.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _quoted(text)


def read_budgets(path: Path) -> dict[str, Budget]:
    """Read the budgets of jobs.

    Raises `PlanError` if the file does not exist, or is not a file of budgets.
    """
    hint = "write it from the present plans: flow plan --check FILE --update SCRIPT.PY"
    try:
        with open_regular(path) as file:
            tables = tomllib.loads(file.read().decode())
        return {job: _budget(job, table) for job, table in tables.items()}
    except (OSError, ValueError) as error:  # also TOMLDecodeError and UnicodeDecodeError
        found = f"{error}"
        if isinstance(error, Mismatch):
            found = f"{error.found} at {error.where}, not {error.allowed}"
        raise PlanError(f"reading the budget {path}", found=found, hint=hint) from error


def _budget(job: str, table: object) -> Budget:
    try:
        if not isinstance(table, dict) or not isinstance(table.get("devices"), str):
            raise Mismatch("no text", "the devices of the plan").within(".devices")
        numbers = {name: value for name, value in table.items() if name != "devices"}
        return Budget(
            table["devices"], Decoder().decode(Mapping[str, Mapping[str, float]], numbers)
        )
    except Mismatch as error:
        raise error.within(job) from error


# ----------------------------------------------------------------------------------- comparison


def compare(doc: PlanDocument, budget: Budget) -> Iterator[Change]:
    """Yield the numbers of a plan that differ from a budget.

    Sections and numbers that the file does not have are not compared, except for new collectives
    and classes of ops, whose budget is 0.  Raises `PlanError` if the plan is for other devices.
    """
    found = budget_of(doc)
    if found.devices != budget.devices:
        raise PlanError(
            f"comparing the plan of job {doc.job!r} with its budget",
            found=f"a plan for {found.devices}",
            allowed=budget.devices,
            hint="pass the options with which the budget was written, such as --emulate-gpus",
        )
    for section in LIMITS:
        allowed, present = budget.numbers.get(section), found.numbers[section]
        if allowed is None:
            continue
        names = allowed if section == STEP else dict.fromkeys((*allowed, *present))
        for name in names:
            pair = allowed.get(name, 0), present.get(name, 0)
            if abs(pair[1] - pair[0]) > ROUNDING * pair[0]:
                excess = Change(doc.job, section, name, *pair).is_excess
                causes = _causes(doc, budget, found, section, name) if excess else ()
                yield Change(doc.job, section, name, *pair, causes)


def _causes(
    doc: PlanDocument, budget: Budget, found: Budget, section: str, name: str
) -> tuple[str, ...]:
    """Return the parts of a number that are new or larger, the largest first, with their lines."""
    part = TRANSFERS if section == COLLECTIVES else PARTS.get(name, "")
    if part in budget.numbers:
        before, lines = budget.numbers[part], _lines(doc, part, name)
        added = {n: v - before.get(n, 0) for n, v in found.numbers[part].items() if n in lines}
        rows = [(more, f"+{count_bytes(int(more))} {n}", lines[n]) for n, more in added.items()]
    else:
        rows = [
            (seconds, f"{duration(seconds)} {type_}", line)
            for seconds, type_, line in _times_by_line(doc, None if section == STEP else name)
        ]
    ranked = sorted((row for row in rows if row[0] > 0), key=lambda row: (-row[0], *row[1:]))
    texts = [text + (line and f" at {place(line)}") for _, text, line in ranked[:MOST_CAUSES]]
    more = len(ranked) - MOST_CAUSES
    return (*texts, *([f"and {more:,} more"] if more > 0 else ()))


def _lines(doc: PlanDocument, part: str, collective: str) -> dict[str, str]:
    """Return the source lines of the parts of a section; of a collective's transfers only."""
    if part == VARIABLES:
        return dict.fromkeys(_variables(doc.plan), "") | {op.name: op.line for op in doc.ops}
    if part == PEAK:
        return {name: line for arena in doc.plan.arenas for _, name, line in arena.owners}
    return {
        _way(entry): entry.line
        for entry in doc.plan.ledger
        if entry.nbytes and (collective in PARTS or collective in entry.steps)
    }


def _times_by_line(doc: PlanDocument, class_: str | None) -> Iterator[tuple[float, str, str]]:
    """Yield the seconds of the tasks of a class of ops (None for all), by op type and line."""
    sums: dict[tuple[str, str], float] = {}
    for task, seconds in zip(doc.plan.tasks, task_seconds(doc.plan), strict=True):
        if class_ is None or class_of(task.type) == class_:
            key = task.type, task.line
            sums[key] = sums.get(key, 0.0) + seconds
    for (type_, line), seconds in sums.items():
        yield seconds, type_, line


# --------------------------------------------------------------------------------------- report

COLUMNS = ("job", "number", "budget", "plan", "where")


def change_table(changes: Sequence[Change], excess: bool, separator: str = "\n") -> Table:
    """Return a table of the numbers that are larger than their budgets, or smaller.

    Args:
        separator: the text between causes; with a line feed, each cause has a row of its own.
    """
    rows: list[Row] = []
    for c in changes:
        if c.is_excess == excess:
            first, *others = separator.join(c.causes).split("\n")
            rows.append((c.job, _label(c), _shown(c, c.allowed), _shown(c, c.found), first))
            rows += [("", "", "", "", other) for other in others]
    title = "larger than the budget" if excess else "smaller: --update lowers the budget"
    return Table(title, COLUMNS if excess else COLUMNS[:-1], tuple(rows))


def _label(change: Change) -> str:
    prefix = {STEP: "", COLLECTIVES: "collectives: ", CLASSES: "predicted time: "}
    return prefix[change.section] + change.name.replace("_", " ")


def _shown(change: Change, number: float) -> str:
    if change.name.endswith("_bytes"):
        return count_bytes(int(number))
    is_time = change.section == CLASSES or change.name == CLASSES
    return duration(number / 1e6) if is_time else f"{number:,.0f}"


def markdown(changes: Sequence[Change]) -> str:
    """Return the report as Markdown, for a comment on a change.

    >>> print(markdown([Change("train", "step", "tasks", 4, 5, ("1 us relu at a.py:3",))]))
    **Larger than the budget**
    <BLANKLINE>
    | job | number | budget | plan | where |
    |---|---|---|---|---|
    | train | tasks | 4 | 5 | 1 us relu at a.py:3 |
    """
    tables = (change_table(changes, excess, "<br>") for excess in (True, False))
    texts = ["\n".join(_markdown_lines(table)) for table in tables if table.rows]
    return "\n\n".join(texts) or "All plans meet their budgets."


def _markdown_lines(table: Table) -> Iterator[str]:
    yield from (f"**{table.title[0].upper()}{table.title[1:]}**", "", _markdown_row(table.columns))
    yield "|" + "---|" * len(table.columns)
    yield from (_markdown_row(row[: len(table.columns)]) for row in table.rows)


def _markdown_row(row: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
