"""Reports on the op catalog: tables, and a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flow_core.comm.exchange import BOXING
from flow_core.compiler.lower.inputs import LEAVES
from flow_core.observe.op_catalog import OpEntry, RuleCase
from flow_core.observe.tables import Table

MISSING = "missing"

WIDTH = 60
"""Maximum number of characters of a cell in the table of all ops."""


def list_table(entries: Sequence[OpEntry]) -> Table:
    """Return a table with one row for each op."""
    columns = ("op", "inputs", "attributes", "types", "gradient", "SBP", "made by", "kernels on")
    rows = tuple(
        (
            entry.type,
            _short(", ".join(entry.inputs)),
            _short(_attributes(entry)),
            _types(entry),
            _yes(entry.gradient),
            str(len(entry.signatures())),
            "passes" if entry.internal else "jobs",
            ", ".join(entry.kernels),
        )
        for entry in entries
    )
    return Table(f"{len(entries)} ops", columns, rows)


def op_tables(entry: OpEntry) -> Iterator[Table]:
    """Yield the tables of one op: its properties, its samples, its SBP signatures, its kernels."""
    rows = (
        ("computes", entry.doc),
        ("inputs", ", ".join(entry.inputs) or "none"),
        ("outputs", ", ".join(entry.outputs) or "none"),
        *((f"attribute {name}", default) for name, default in entry.attrs.items()),
        ("element types", ", ".join(entry.types)),
        ("gradient", _yes(entry.gradient)),
        ("made by", "passes only" if entry.internal else "jobs"),
        ("runs on", "the CPU in every placement" if entry.host else ""),
        ("kernel", "needs none: a view of its input" if entry.view else ""),
    )
    yield Table(entry.type, (), tuple(row for row in rows if row[1]))
    numbers = {id(case): str(number) for number, case in enumerate(entry.cases, 1)}
    samples = tuple((numbers[id(case)], *sample_text(entry, case)) for case in entry.cases)
    yield Table("Samples", ("sample", "inputs", "outputs", "attributes that differ"), samples)
    signatures = tuple(
        (text, _of_samples([numbers[id(case)] for case in cases], len(samples)))
        for text, cases in entry.signatures().items()
    )
    yield Table("SBP signatures", ("signature", "holds for"), signatures or (("none", ""),))
    kernels = tuple(
        (device, k.name, k.plugin, str(k.priority), "some" if k.selective else "all")
        for device, found in entry.kernels.items()
        for k in found
    )
    columns = ("device type", "kernel", "plugin", "priority", "accepts")
    yield Table("Kernels", columns, kernels)


def sample_text(entry: OpEntry, case: RuleCase) -> tuple[str, str, str]:
    """Return the inputs, the outputs, and the attributes that differ from their defaults."""
    attributes = (
        f"{name}={value!r}"
        for name, value in case.attributes.items()
        if repr(value) != entry.attrs[name]
    )
    inputs, outputs = (", ".join(map(str, types)) for types in (case.inputs, case.outputs))
    return inputs, outputs, ", ".join(attributes)


def _of_samples(numbers: Sequence[str], total: int) -> str:
    """Return the samples for which a rule holds as text.

    >>> _of_samples(["1", "2"], 2), _of_samples(["2"], 2)
    ('all samples', 'samples 2')
    """
    return "all samples" if len(numbers) == total else f"samples {', '.join(numbers)}"


def signature_texts(entry: OpEntry) -> Iterator[str]:
    """Yield the rules of an op in Markdown, with the share of samples for which each holds."""
    for text, cases in entry.signatures().items():
        some = len(cases) < len(entry.cases)
        yield f"`{text}`" + (f" ({len(cases)} of {len(entry.cases)} samples)" if some else "")


def run_on_devices(entries: Iterable[OpEntry]) -> list[OpEntry]:
    """Return the ops for which a device type may have a kernel of its own."""
    none = (*LEAVES, BOXING)
    return [e for e in entries if not e.host and not e.view and e.type not in none]


def device_tables(
    entries: Iterable[OpEntry], device_type: str, needed: Mapping[str, str]
) -> Iterator[Table]:
    """Yield tables of the kernels that a device type has, and of the ops for which it lacks one.

    Args:
        needed: for each op type, the kind of the smallest job that needs the op.
    """
    shown = [e for e in run_on_devices(entries) if not e.internal or device_type in e.kernels]
    lacking = [e.type for e in shown if device_type not in e.kernels]
    rows = [("kernels", f"{len(shown) - len(lacking)} of {len(shown)} ops")]
    kinds = tuple(dict.fromkeys(needed.values()))
    for number, kind in enumerate(kinds, 1):
        wanted = [op for op, by in needed.items() if by in kinds[:number]]
        absent = [op for op in wanted if op in lacking]
        state = f"{MISSING}: {', '.join(absent)}" if absent else "none is missing"
        rows.append((f"a {kind} job needs at least", f"{len(wanted)} ops; {state}"))
    yield Table(f"Device type {device_type}", (), tuple(rows))
    yield Table(
        "Ops",
        ("op", "kernel", "plugin", "needed by"),
        tuple(_device_row(entry, device_type, needed) for entry in shown),
    )


def _device_row(entry: OpEntry, device_type: str, needed: Mapping[str, str]) -> tuple[str, ...]:
    first, *others = entry.kernels.get(device_type, (None,))
    name = MISSING if first is None else first.name + (f" +{len(others)}" if others else "")
    return (entry.type, name, first.plugin if first else "", needed.get(entry.type, ""))


def markdown(entries: Sequence[OpEntry], needed: Mapping[str, str]) -> str:
    """Return a Markdown page with all ops."""
    columns = ("op", "inputs", "attributes", "types", "gradient", "SBP signatures", "kernels on")
    lines = [
        "# Ops",
        "",
        "All op types, from their specs, rules and kernels; `flow ops` prints the same. `?` marks",
        "an optional input, `*` any number of inputs. The SBP signatures are those that the rules",
        "of an op allow for its samples, besides all-broadcast. A signature depends on attributes",
        "and shapes: `flow ops NAME` lists the samples for which it holds.",
        "",
        *(f"A {kind} job needs at least {text}." for kind, text in _needs(needed)),
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
    ]
    for entry in entries:
        cells = (
            f"`{entry.type}`" + (" (passes only)" if entry.internal else ""),
            ", ".join(entry.inputs),
            _attributes(entry),
            _types(entry),
            _yes(entry.gradient),
            "; ".join(signature_texts(entry)),
            ", ".join(entry.kernels),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _needs(needed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    kinds = tuple(dict.fromkeys(needed.values()))
    for number, kind in enumerate(kinds, 1):
        yield kind, ", ".join(f"`{op}`" for op, by in needed.items() if by in kinds[:number])


def _attributes(entry: OpEntry) -> str:
    return ", ".join(
        name if default == "required" else f"{name}={default}"
        for name, default in entry.attrs.items()
    )


FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGRAL = ("int8", "int32", "int64", "uint8")


def _types(entry: OpEntry) -> str:
    """Return the element types as text; a complete group of types is shown by its name."""
    left = list(entry.types)
    groups = []
    for name, members in (("floating", FLOATING), ("integral", INTEGRAL)):
        if set(members) <= set(left):
            left = [t for t in left if t not in members]
            groups.append(name)
    return ", ".join((*groups, *left))


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def _yes(value: bool) -> str:
    return "yes" if value else "no"
