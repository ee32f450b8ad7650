"""The CUDA kernels of updates, written from the formulas of `flow_core.ir.update_rules`.

Phase k of a rule is a function `phase_name`, whose arguments are those of the op.  If a rule has
states of one element, another function updates them after all phases, which read the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from flow_core.authoring.update_rules import (
    BY_TYPE,
    COMMON,
    INDEXED,
    TABLE,
    Phase,
    Update,
    update_source,
)

UPDATES, ROW_UPDATES = "updates.h", "row_updates.h"
OWN = 3
"""Number of attributes of a rule for rows, of which a rule may use fewer."""


def phase_name(row: Update, phase: int) -> str:
    """Return the name of the function of a phase."""
    return f"{row.type}_{phase}"


@cache
def phases_of(op: str, penalties: bool = True) -> tuple[Phase, ...]:
    """Return the phases of an update; those with and without penalties have the same arguments."""
    return update_source(BY_TYPE[op], "V", penalties)


def _functions(row: Update) -> Iterator[str]:
    forms = phases_of(row.type), phases_of(row.type, penalties=False)
    for k, phase in enumerate(forms[0]):
        yield from _head(row, k, set(phase.stores), "whole_blocks()" if phase.norms else "whole()")
        yield "if (terms.l1 != 0 || terms.l2 != 0) {"
        yield from (*_phase(row, forms[0], k), "return;", "}", *_phase(row, forms[1], k), "}")
    if row.numbers:
        yield from _head(row, len(forms[0]), set(row.numbers), "whole()")
        yield from ("if (part.first) return;", *_numbers(row, forms[0][0]))
        yield from (f"store(p_{name}, {name});" for name in row.numbers)
        yield "}"


def _phase(row: Update, phases: tuple[Phase, ...], k: int) -> Iterator[str]:
    """Yield the numbers of a phase and those before, and its loop."""
    for phase in phases[:k]:
        yield from (*_numbers(row, phase), *_norms(phase))
    yield from (*_numbers(row, phases[k]), *_loop(phases[k]))


def _head(row: Update, phase: int, stores: set[str], part: str) -> Iterator[str]:
    """Yield the beginning of a function, with the attributes as numbers."""
    arrays = ("model", "model_diff", *row.states, *row.numbers)
    kinds = {name: f"T{i}" for i, name in enumerate(arrays)}
    given = [
        *(f"{'' if n in stores else 'const '}{kind} *p_{n}" for n, kind in kinds.items()),
        "const float *p_rate", *(("const i64 *p_step",) * row.step), "const F *factor",
        "const i64 *skip", *(() if row.local else ("double *sums",)), "i64 n",
        *(() if row.local else ("i64 parts",)), "Terms terms",
        *(f"double {name}" for name in row.attrs), f"Part part = {part}",
    ]  # fmt: skip
    yield f"template <{', '.join(f'class {kind}' for kind in kinds.values())}, class F>"
    yield f"FN void {phase_name(row, phase)}({', '.join(given)}) {{"
    yield "typedef typename In<T0>::type V;\nUNLESS_SKIPPED"
    yield "const double rate = *p_rate, scale = SCALE, size = n > 1 ? n : 1;"
    yield from (f"const double {name} = terms.{name};" for name in COMMON if name != "scale")
    yield from ("const double train_step = (double)*p_step;",) * row.step
    yield from (f"double {name} = (double)load(p_{name});" for name in row.numbers)


def _numbers(row: Update, phase: Phase) -> tuple[str, ...]:
    return tuple(
        f"{'' if name in row.numbers else 'const double '}{name} = {text};"
        for name, text in phase.numbers.items()
    )


def _norms(phase: Phase) -> tuple[str, ...]:
    return tuple(
        f"const double norm{k} = norm_of(sums, parts, {k});" for k in range(len(phase.norms))
    )


def _coefficients(phase: Phase) -> Iterator[str]:
    return (f"const V {name} = (V){text};" for text, name in phase.coefficients.items())


def _loop(phase: Phase) -> Iterator[str]:
    """Yield the loop of a phase: over elements, or over parts of which it stores the sums."""
    loads = (f"const V {local} = (V)load(p_{name} + i);" for local, name in phase.reads.items())
    stores = (f"store(p_{name} + i, {local});" for name, local in phase.stores.items())
    body = (*loads, *phase.lines, *stores)
    yield from _coefficients(phase)
    if not phase.norms:
        yield from ("EACH_OF(part, i, n) {", *body, "}")
        return
    sums = range(len(phase.norms))
    yield "const i64 length = (n + parts - 1) / parts;"
    yield "EACH_OF(part, p, parts) {"
    yield "const i64 stop = p * length + length < n ? p * length + length : n;"
    yield from (f"double sum{k} = 0;" for k in sums)
    yield "for (i64 i = p * length + threadIdx.x; i < stop; i += BLOCK) {"
    yield from body
    for k, text in enumerate(phase.norms):
        yield f"const double y{k} = (double)({text});"
        yield f"sum{k} += y{k} * y{k};"
    yield "}"
    yield from (f"sum{k} = over_block<Sum>(sum{k});" for k in sums)
    yield from (f"if (threadIdx.x == 0) sums[2 * p + {k}] = sum{k};" for k in sums)
    yield "}"


def _row_struct(row: Update) -> Iterator[str]:
    (phase,) = phases_of(row.type, penalties=False)
    states = {name: f"p{i}" for i, name in enumerate(row.states, 1)}
    yield f"struct {row.type}_row {{\ntemplate <class V> static __device__ V of("
    yield "V model0, V model_diff0, V *p1, V *p2, double rate, double scale, double weight_decay,"
    yield f"{', '.join(f'double a{i}' for i in range(OWN))}) {{"
    yield from (f"const double {name} = a{i};" for i, name in enumerate(row.attrs))
    yield from _coefficients(phase)
    yield from (f"const V {k} = *{states[n]};" for k, n in phase.reads.items() if n in states)
    yield from phase.lines
    yield from (f"*{states[n]} = {local};" for n, local in phase.stores.items() if n in states)
    yield f"return {phase.stores['model']};\n}}\n}};"


HEADERS: Mapping[str, Callable[[], str]] = {
    UPDATES: lambda: "\n".join(line for row in TABLE for line in _functions(row)),
    ROW_UPDATES: lambda: "\n".join(line for op in INDEXED for line in _row_struct(BY_TYPE[op])),
}
"""The headers that are written when they are included: the functions that update variables, and the
structs that update an element of a row.  Include them after ``update.h``."""
