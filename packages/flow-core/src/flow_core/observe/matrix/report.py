"""The report of ``flow verify --matrix``: tables, and a page for a review."""

from __future__ import annotations

from collections.abc import Iterator

from flow_core.base.formats.html_table import html_table
from flow_core.observe.matrix.forms import LAYOUTS, PRECISIONS
from flow_core.observe.matrix.matrix import DISTANCE, Cell, Matrix
from flow_core.observe.matrix.plan_check import Finding
from flow_core.observe.tables import Row, Table

SHOWN = 12
"""The number of findings that the tables show; JSON and the page have all."""

FINDINGS = ("what", "op", "type", "device", "step", "line", "form")


def matrix_tables(found: Matrix) -> Iterator[Table]:
    """Yield the tables that ``flow verify --matrix`` prints."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in found.cells:
        groups.setdefault((cell.form.layout, cell.form.devices), []).append(cell)
    columns = ("layout", "devices", *PRECISIONS, "ops", "own / bound", "results apart")
    rows = tuple(_group(*key, cells) for key, cells in groups.items())
    yield Table(_title(found), columns, rows)
    refused = [cell for cell in found.cells if cell.refused]
    if refused:
        lines = dict.fromkeys((_form(c), c.refused.splitlines()[0]) for c in refused)
        yield Table("forms in which the job cannot be compiled", (), tuple(lines)[:SHOWN])
    wrong = [(cell, finding) for cell in found.cells for finding in cell.findings]
    if wrong:
        yield Table("what is wrong", FINDINGS, tuple(_finding(*row) for row in wrong[:SHOWN]))
        texts = dict.fromkeys((f.op, line) for _, f in wrong for line in f.text.splitlines())
        yield Table("how", (), tuple(texts)[:SHOWN])
    yield Table("compared", (), tuple((text,) for text in DISTANCE))


def _title(found: Matrix) -> str:
    checked = sum(not cell.refused for cell in found.cells)
    wrong = sum(bool(cell.findings) for cell in found.cells)
    return (
        f"job {found.job!r} at {found.line}: {found.steps} steps in {checked} forms, "
        f"{wrong or 'none'} of them wrong ({', '.join(found.versions)})"
    )


def _group(layout: str, devices: int, cells: list[Cell]) -> Row:
    checked = [cell for cell in cells if not cell.refused]
    return (
        layout,
        str(devices),
        *(_verdict([c for c in cells if c.form.precision == name]) for name in PRECISIONS),
        str(max((cell.ops for cell in checked), default=0)),
        f"{max((cell.own for cell in checked), default=0.0):.2f}",
        f"{max((cell.distance for cell in checked), default=0.0):.1e}",
    )


def _verdict(cells: list[Cell]) -> str:
    wrong = sum(bool(cell.findings) for cell in cells)
    checked = sum(not cell.refused for cell in cells)
    if wrong:
        return f"{wrong} of {checked} WRONG"
    return f"{checked} ok" if checked else "refused"


def _form(cell: Cell) -> str:
    f = cell.form
    return f"{f.layout} on {f.devices}, {f.precision}, passes {f.passes}, {f.backend}"


def _finding(cell: Cell, found: Finding) -> Row:
    step = "any" if found.step < 0 else str(found.step)
    return found.kind, found.op, found.type, found.device, step, found.line, _form(cell)


def matrix_page(found: Matrix) -> str:
    """Return the report as a page without scripts, which a review can hold."""
    rows = [
        (
            f.layout, f.devices, f.precision, f.passes, f.backend, c.tasks, c.ops, c.equal,
            f"{c.own:.2f}", f"{c.distance:.1e}",
            c.refused.splitlines()[0] if c.refused else "WRONG" if c.findings else "ok",
        )
        for c in found.cells
        for f in [c.form]
    ]  # fmt: skip
    columns = (
        "layout", "devices", "precision", "passes", "backend", "tasks", "ops", "same bits",
        "own / bound", "results apart", "",
    )  # fmt: skip
    wrong = [(*_finding(cell, f), f.text) for cell in found.cells for f in cell.findings]
    tables = [
        html_table(_title(found), rows, columns),
        html_table("layouts", LAYOUTS.items()),
        html_table("compared", [(text,) for text in DISTANCE]),
    ]
    if wrong:
        tables.insert(1, html_table("what is wrong", wrong, (*FINDINGS, "how")))
    body = "\n".join(tables)
    head = '<meta charset="utf-8"><title>flow verify --matrix</title>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'
