"""``flow verify --matrix``: a job in many forms, each compared with one device, as a certificate.

Each form is compiled in a session of its own, from the same initial values and feeds.  Its plan is
checked as `PlanCheck` does, and the passes that made it as `wrong_passes` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import flow_core
from flow_core.base.errors import FlowError
from flow_core.frontend.job.function import AnyJob
from flow_core.frontend.session.default import open_session_without
from flow_core.frontend.session.session import Session, default_session
from flow_core.observe.matrix.forms import (
    LAYOUTS,
    Form,
    backends,
    compiled,
    forms,
    kernel_packages,
    plan_of,
)
from flow_core.observe.matrix.pass_check import wrong_passes
from flow_core.observe.matrix.plan_check import Finding, PlanCheck
from flow_core.observe.rounding import drift
from flow_core.observe.verdict import EQUAL
from flow_core.plan import Plan

DISTANCE = (
    "each op's outputs: the difference from the op alone on one device, for the inputs that it"
    " had, over what rounding explains (own / bound, at most 1)",
    "each pass on the logical graph: the difference of every value and update that it keeps,"
    " relative to the largest element, at most what reordered roundings explain (2^-13 in float32,"
    " 2^-4 in 16-bit types), or 16 times what a few roundings of weights and feeds change; of mixed"
    " precision, values at most 0.5: flow verify --precision measures its errors",
    "copies of variables, results, and inputs when tasks read them: bit by bit",
    "order of tasks: a proof that waits form no circle and cover all memory that tasks share",
)
"""What a form is compared with, and by which distance."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The check of a form."""

    form: Form
    tasks: int = 0  # of the plan
    ops: int = 0  # logical ops that were compared
    equal: int = 0  # the number of ops with the same bits as on one device
    own: float = 0.0  # the largest own error of an op, in units of its bound
    # How far the results of the first step are from those of the first form, relative to the
    # largest element; for information.
    distance: float = 0.0
    findings: tuple[Finding, ...] = ()
    refused: str = ""  # the error if the job cannot be compiled in this form; empty if it can


@dataclass(frozen=True, slots=True)
class Matrix:
    """A job in all forms."""

    job: str
    line: str  # of the job's definition
    steps: int  # the number of steps in each form
    seed: int  # of feeds and variables
    versions: tuple[str, ...]  # the versions of flow-core and of the packages with kernels
    cells: tuple[Cell, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong in any form, and at least one has been compared."""
        checked = any(not cell.refused for cell in self.cells)
        return checked and not any(cell.findings for cell in self.cells)

    def to_json(self) -> str:
        """Return everything as JSON text."""
        more = {"ok": self.ok, "distances": DISTANCE, "layouts": LAYOUTS}
        return json.dumps({**more, **asdict(self)}, indent=2)


def verify_matrix(
    job: AnyJob,
    devices: int = 4,  # the largest number of devices
    *,
    steps: int = 2,
    seed: int = 0,  # seed of the random inputs and of the noise on constant weights
    progress: Callable[[str], object] = lambda _: None,
    # A function that returns the plan to check in place of a compiled one.
    changed: Callable[[Plan], Plan] = lambda plan: plan,
    # Which forms to check, of those that differ by more than their passes.
    rows: slice = slice(None),
) -> Matrix:
    """Check a job in all forms.

    The default session is cleared, and the job is compiled again for each form.
    """
    session = default_session()
    settings, known = session.settings, backends(session)
    train = job.prepare().build.kind == "train"
    cells: list[Cell] = []
    first: list[Any] = []
    found = groupby(forms(devices, train, [*known]), lambda form: replace(form, passes=""))
    for form, row in [(form, [*row]) for form, row in found][rows]:
        progress(f"{form.layout} on {form.devices}, {form.precision}, {form.backend}")
        open_session_without(known[form.backend], settings)
        cells += _cells(job, row, steps, seed, changed, first)
    open_session_without((), settings)
    return Matrix(job.name, str(job.line or ""), steps, seed, _versions(session), tuple(cells))


def _cells(
    job: AnyJob,
    row: Sequence[Form],
    steps: int,
    seed: int,
    changed: Callable[[Plan], Plan],
    first: list[Any],
) -> Iterator[Cell]:
    """Yield the checks of forms that differ in their physical passes only."""
    found: list[Finding] | None = None
    values: Mapping[str, Any] = {}  # also of variables that passes create
    for form in row:
        try:
            plan = plan_of(job, compiled(job, form) if found is None else job.compile(), form)
        except FlowError as error:
            yield Cell(form, refused=str(error))
            continue
        check = PlanCheck.of_plan(job, changed(plan), seed)
        feeds, check.values = check.draw(0), {**values, **check.values}
        if found is None:
            found = wrong_passes(check, feeds, seed)
            values = check.values
        yield _cell(form, check, found + check.check(steps), first)


def _cell(form: Form, check: PlanCheck, found: list[Finding], first: list[Any]) -> Cell:
    results = check.results
    if not first:
        first.extend(results)
    apart = [
        drift(a, b)
        for a, b in zip(results, first, strict=True)
        if getattr(a, "shape", None) == getattr(b, "shape", 0) and a.dtype.kind not in "iubO"
    ]
    verdicts = check.found.values()
    return Cell(
        form,
        len(check.plan.tasks),
        len(verdicts),
        sum(verdict.verdict == EQUAL for verdict in verdicts),
        max((v.own for v in verdicts if not v.wrong), default=0.0),
        max(apart, default=0.0),
        tuple(found),
    )


def _versions(session: Session) -> tuple[str, ...]:
    """Return the versions of the packages whose kernels were compared."""
    found = (f"{o.distribution} {o.version}" for o in kernel_packages(session).values())
    return (f"flow-core {flow_core.__version__}", *found)
