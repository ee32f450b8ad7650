"""Compilation of a job that may not fit into the memory of its devices.

If the job does not fit as it is, the cheapest form is searched for among the changes that the
program allows.  If there is none, the job is refused; the error says what was searched, and which
settings would allow a form that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flow_core.base.errors import OutOfMemoryError
from flow_core.compiler.request import Compiled
from flow_core.frontend.job.forms.form import Form
from flow_core.frontend.job.forms.search import Search, Steps
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.job.forms.table import KINDS, Kind, consent

SHOWN = 3
"""The largest number of forms that an error names."""

ADVICE = 2.0
"""The budget of the search for forms that need other settings, in nominal seconds."""

INDENT = " " * 11
"""The indentation of the lines of a hint."""


def cheapest_form(
    source: Source,  # the job, which does not fit as it is
    steps: Steps,
    refused: OutOfMemoryError,
) -> Compiled:
    """Return the cheapest form of a job that fits, with the report on the search.

    Raises:
        OutOfMemoryError: no form that the program allows fits.
    """
    build = source.build
    allowed = [kind for kind in KINDS if not consent(build, kind)]
    search, seconds = Search(source, steps), float(build.config.get("sbp_selector_seconds"))
    found = search.run(allowed, seconds) if allowed else None
    if found is None or found.compiled is None:
        hint = "\n".join(_advice(source, search, allowed))
        raise refused.with_context(hint=hint) from None
    return replace(found.compiled, searched=search.report(found, allowed))


def _advice(source: Source, search: Search, allowed: Sequence[Kind]) -> Iterator[str]:
    """Yield the lines of the hint: what was searched, and the forms that other settings allow."""
    if allowed:
        names = ", ".join(kind.name for kind in allowed)
        left = f", {search.left} more were left for lack of sbp_selector_seconds"
        yield (
            f"no form that the settings allow fits: {len(search.tried)} with {names} were compiled"
            f"{left if search.left else ''}"
        )
    if len(allowed) < len(KINDS):
        search.run(KINDS, ADVICE)
    general = "make the batch smaller, or place ops on more devices"
    fitting = search.fitting
    if fitting:
        are = "forms fit" if len(fitting) > 1 else "form fits"
        yield f"{INDENT}{len(fitting)} {are} with other settings; or {general}:"
        yield from (INDENT + _row(source, form) for form in fitting[:SHOWN])
    else:
        yield f"{INDENT}{general}; the smallest of {len(search.tried)} forms in all:"
        smallest = sorted(search.tried, key=lambda form: form.nbytes)[:SHOWN]
        yield from (f"{INDENT}{form.name}: {form.nbytes:,} bytes" for form in smallest)
    yield from (f"{INDENT}not tried: {note}" for note in search.notes[:SHOWN])


def _row(source: Source, form: Form) -> str:
    wanted = dict.fromkeys(consent(source.build, kind) for kind in form.kinds)
    settings = " and ".join(setting for setting in wanted if setting)
    return f"{form.name}: {form.nbytes:,} bytes, if allowed by {settings}"
