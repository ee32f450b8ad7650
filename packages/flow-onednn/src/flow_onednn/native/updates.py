"""The C functions of the updates, written from the formulas of `flow_core.ir.update_rules`.

Each rule has a function that updates a variable.  The rules for rows that were looked up also have
a function that sets the coefficients, and one that updates a part of a row.  Arrays are in the
order of the op's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flow_core.authoring.update_rules import (
    BY_TYPE,
    COMMON,
    INDEXED,
    TABLE,
    Phase,
    Update,
    update_source,
)

_UPDATE = (
    "(void **x, const float *rate_, const float *factor, const int64_t *step, double *sums,"
    " long n, int parts, const double *a)"
)
_SETUP = "(const double *a, const double rate, const double scale, float *c)"
_ROW = "(float *const *x, const float *g, const float *c, long at, long m)"


def updates_source() -> str:
    """Return the functions, a table of those that update a variable, and a list of the others."""
    lines = [line for row in TABLE for line in _function(row)]
    lines += [line for op in INDEXED for line in _row_functions(BY_TYPE[op])]
    tables = [1 + len(BY_TYPE[op].states) for op in INDEXED]
    rows = (f"RUN({k}, {op}, {tables[k]})" for k, op in enumerate(INDEXED))
    most = max(len(_row_phase(BY_TYPE[op]).coefficients) for op in INDEXED)
    lines += [
        f"enum {{ MOST_COEFFICIENTS = {most}, MOST_TABLES = {max(tables)} }};",
        f"static void (*const UPDATES[]){_UPDATE} = {{{', '.join(row.type for row in TABLE)}}};",
        f"#define ROW_UPDATES(RUN) {' '.join(rows)}",
    ]
    return "\n".join((*lines, ""))


def _attributes(row: Update) -> Iterator[str]:
    for i, name in enumerate((*COMMON, *row.attrs)):
        if name != "scale":
            yield f"const double {name} = a[{i}];"


def _function(row: Update) -> Iterator[str]:
    """Yield the function that updates a variable."""
    names = ("model", "model_diff", *row.states, *row.numbers)
    places = {name: f"p{i}" for i, name in enumerate(names)}
    yield f"static void {row.type}{_UPDATE} {{"
    yield from (f"float *{place} = x[{i}];" for i, place in enumerate(places.values()))
    yield "const double rate = *rate_, scale = scaled(a[0], factor), size = n > 1 ? n : 1;"
    yield from _attributes(row)
    if row.step:
        yield "const double train_step = (double)*step;"
    yield from (f"double {name} = *{places[name]};" for name in row.numbers)
    for penalties in (True, False):
        yield f"if ({'l1 != 0.0 || l2 != 0.0' if penalties else '1'}) {{"
        for phase in update_source(row, "float", penalties):
            yield from _numbers(row, phase, places)
            body = (*_loads(phase, places, "i"), *phase.lines, *_stores(phase, places, "i"))
            yield from _sums(phase, body) if phase.norms else ("EACH(n, {", *body, "})")
        yield "return;\n}"
    yield "}"


def _numbers(row: Update, phase: Phase, places: Mapping[str, str]) -> Iterator[str]:
    """Yield the numbers of a phase; those that are states are rounded."""
    for name, text in phase.numbers.items():
        if name in row.numbers:
            yield f"{name} = *{places[name]} = (float){text};"
        else:
            yield f"const double {name} = {text};"
    yield from (f"const float {name} = (float){text};" for text, name in phase.coefficients.items())


def _loads(phase: Phase, places: Mapping[str, str], at: str) -> Iterator[str]:
    return (f"const float {local} = {places[name]}[{at}];" for local, name in phase.reads.items())


def _stores(phase: Phase, places: Mapping[str, str], at: str) -> Iterator[str]:
    return (f"{places[name]}[{at}] = {local};" for name, local in phase.stores.items())


def _sums(phase: Phase, body: tuple[str, ...]) -> Iterator[str]:
    """Yield a loop over parts of a variable, with sums of squares whose roots are the norms."""
    both = range(len(phase.norms))
    yield '_Pragma("omp parallel for if (n > PARALLEL) schedule(static)")'
    yield "for (int p = 0; p < parts; p++) {"
    yield from (f"double sum{k} = 0.0;" for k in both)
    yield f'_Pragma("omp simd reduction(+ : {", ".join(f"sum{k}" for k in both)})")'
    yield "for (long i = n * p / parts; i < n * (p + 1) / parts; i++) {"
    yield from body
    for k, text in enumerate(phase.norms):
        yield f"const float y{k} = {text};"
        yield f"sum{k} += (double)y{k} * y{k};"
    yield "}"
    yield from (f"sums[2 * p + {k}] = sum{k};" for k in both)
    yield "}"
    yield "add_pairs(sums, parts);"
    yield from (f"const double norm{k} = sqrt(sums[{k}]);" for k in both)


def _row_phase(row: Update) -> Phase:
    (phase,) = update_source(row, "float", penalties=False)
    return phase


def _row_functions(row: Update) -> Iterator[str]:
    """Yield the functions for a part of a row; without a gradient ``g``, the gradient is 0."""
    phase = _row_phase(row)
    yield f"static void {row.type}_setup{_SETUP} {{"
    yield from _attributes(row)
    yield from (f"c[{k}] = (float){text};" for k, text in enumerate(phase.coefficients))
    yield f"}}\nstatic inline __attribute__((always_inline)) void {row.type}_row{_ROW} {{"
    del phase.reads["model_diff0"]
    places = {name: f"p{i}" for i, name in enumerate(("model", *row.states))}
    yield from (f"float *{place} = x[{i}] + at;" for i, place in enumerate(places.values()))
    yield from (
        f"const float {name} = c[{k}];" for k, name in enumerate(phase.coefficients.values())
    )
    body = (*_loads(phase, places, "j"), *phase.lines, *_stores(phase, places, "j"))
    for test, gradient in (("g", "g[j]"), ("!g", "0.0f")):
        yield f'if ({test}) {{ _Pragma("omp simd") for (long j = 0; j < m; j++) {{'
        yield from (f"const float model_diff0 = {gradient};", *body)
        yield "}}"
    yield "}"
