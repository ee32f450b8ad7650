"""The differences between two plans in boxing, bytes, memory and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flow_core.observe.document import OpRow, PlanDocument
from flow_core.observe.tables import Row, Table, count_bytes
from flow_core.plan import Plan, Transfer
from flow_core.sharding.topology import Device


def diff_tables(a: PlanDocument, b: PlanDocument) -> Iterator[Table]:
    """Yield tables of the changes from plan ``a`` to plan ``b``: totals, then boxing and ops."""
    yield Table(f"from {_title(a)}\nto   {_title(b)}", (), ())
    yield Table("in a step", ("", "from", "to", "change"), tuple(_totals(a.plan, b.plan)))
    boxing = tuple(_boxing(a.plan.ledger, b.plan.ledger))
    if boxing:
        columns = ("", "value", "steps", "from", "to", "bytes", "line")
        yield Table("boxing that differs", columns, boxing)
    signatures = tuple(_signatures(a, b))
    if signatures:
        yield Table("ops that differ", ("", "op", "from", "to", "line"), signatures)


def _title(doc: PlanDocument) -> str:
    return f"{doc.kind} job {doc.job!r} at {doc.line}"


def _totals(a: Plan, b: Plan) -> Iterator[Row]:
    yield _numbers("bytes across devices", a.bytes_per_step, b.bytes_per_step)
    yield _numbers("transfers", len(a.ledger), len(b.ledger))
    yield _numbers("tasks", len(a.tasks), len(b.tasks))
    before, after = _arenas(a), _arenas(b)
    for device in dict.fromkeys((*before, *after)):
        yield _numbers(f"arena of {device}", before.get(device, 0), after.get(device, 0))
    yield _numbers("variables", _states(a), _states(b))


def _numbers(what: str, a: int, b: int) -> Row:
    show = str if what in ("tasks", "transfers") else count_bytes
    change = "none" if a == b else f"{'+' if b > a else '-'}{show(abs(b - a))}"
    return (what, show(a), show(b), change)


def _arenas(plan: Plan) -> dict[Device, int]:
    return {arena.device: arena.nbytes for arena in plan.arenas}


def _states(plan: Plan) -> int:
    held = (plan.buffers[i] for i in plan.variables.values())
    return sum(buffer.type.nbytes for buffer in held if not buffer.home)


def _boxing(a: Sequence[Transfer], b: Sequence[Transfer]) -> Iterator[Row]:
    before, after = _numbered(a), _numbered(b)
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            entry, sign = (new, "added") if old is None else (old, "removed")
            if entry is not None:
                yield (sign, *_entry(entry))
        elif (old.steps, old.nbytes) != (new.steps, new.nbytes):
            yield ("changed", *_entry(old))
            yield ("  to", *_entry(new))


def _numbered(ledger: Sequence[Transfer]) -> Mapping[tuple[str, str, str, int], Transfer]:
    """Return the entries by value, layouts, and a number that tells apart otherwise equal keys."""
    found: dict[tuple[str, str, str, int], Transfer] = {}
    for entry in ledger:
        number = 0
        while (key := (entry.value, entry.source, entry.target, number)) in found:
            number += 1
        found[key] = entry
    return found


def _entry(e: Transfer) -> Row:
    return (e.value, ", ".join(e.steps), e.source, e.target, f"{e.nbytes:,}", e.line)


def _signatures(a: PlanDocument, b: PlanDocument) -> Iterator[Row]:
    before, after = ({op.name: op for op in doc.ops} for doc in (a, b))
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        ways = [_way(op) for op in (old, new)]
        if ways[0] != ways[1]:
            change = "added" if old is None else "removed" if new is None else "changed"
            op = new or old
            yield (change, name, *ways, op.line if op else "")


def _way(op: OpRow | None) -> str:
    return "" if op is None else " ".join((op.type, op.placement, ", ".join(op.sbp)))
