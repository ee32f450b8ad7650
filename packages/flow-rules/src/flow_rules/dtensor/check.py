"""Check the rules of all ops that DTensor has registered."""

from __future__ import annotations

import multiprocessing
import os
import platform
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from flow_rules.draws import conclusive, drawn, multiples, not_zero, varied
from flow_rules.dtensor.derived import derived
from flow_rules.dtensor.samples import Call, record
from flow_rules.dtensor.strategies import DEVICES, Declared, partials, registered
from flow_rules.layouts import Array, Rule, TensorType, chunks
from flow_rules.prover import NONSENSE, Case, Prover, Trial, all_broadcast, formable
from flow_rules.scattering import is_close

CALLS = 6
"""Calls of each op that are checked."""
CONFIRMATIONS = 8
"""Sets of draws with which a missing rule is confirmed."""
DERIVED = 3
"""Calls of each op that PyTorch's samples do not call."""
CRASH = "a call with parts that do not match ends the process"
"""The reason why an op is not checked, or not searched."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A rule that DTensor declares and that does not hold, or that holds and is not declared."""

    op: str
    call: str  # the op with its arguments
    rule: str  # the rule as text
    # A number of devices on which a wrong rule does not hold; None for a missing rule.
    devices: int | None = None
    reason: str = ""  # what was found instead; empty for a missing rule


@dataclass
class Totals:
    """What the check has found."""

    versions: Mapping[str, str] = field(default_factory=dict)  # of Python, numpy and PyTorch
    registered: int = 0  # number of ops for which DTensor has rules
    ops: int = 0  # numbers of ops, calls and rules that were checked
    calls: int = 0
    rules: int = 0
    unknown: int = 0  # number of rules with placements that the prover does not know
    derived: int = 0  # number of ops whose calls come from related ops or schemas
    # The numbers of calls that were not checked, by reason.
    skipped: dict[str, int] = field(default_factory=dict)
    # The ops of which no call was checked, with the reason.
    unchecked: dict[str, str] = field(default_factory=dict)
    searched: int = 0  # number of ops of which calls were searched for missing rules
    # The ops of which calls were checked, but none was searched, with the reason.
    unsearched: dict[str, str] = field(default_factory=dict)
    wrong: list[Discrepancy] = field(default_factory=list)  # the discrepancies
    missing: list[Discrepancy] = field(default_factory=list)

    def skip(self, reason: str) -> None:
        """Count a call that was not checked."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def add(self, other: Totals) -> None:
        """Add the counts and discrepancies of other calls."""
        counts = ("ops", "calls", "rules", "unknown", "derived", "searched")
        for name in (*counts, "wrong", "missing"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.unchecked |= other.unchecked
        self.unsearched |= other.unsearched

    def to_json(self) -> dict[str, object]:
        """Return the totals as JSON data."""
        return asdict(self)


def check_dtensor(
    functions: Callable[[str], bool] | None = None,
    search: bool = False,
    progress: Callable[[str], None] = lambda op: None,
) -> Totals:
    """Check the rules that the installed PyTorch declares.

    Args:
        functions: whether to check the ops that the samples of a function of a name call, such as
            ``"nn.functional.layer_norm"``; None for all ops, also those that no sample calls.
        search: whether to search for rules that hold and are not declared, which takes longer; not
            for ops that write into given tensors.
        progress: called with the name of each op before it is checked.
    """
    known = registered()
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    totals = Totals(versions, len(known))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about its own samples
        recorded = record(known, CALLS, functions or (lambda name: True))
        for op in sorted(recorded if functions else known, key=str):
            progress(str(op))
            found = apart(partial(_check_op, op, recorded, search), str(op))
            if search and CRASH in found.unchecked.values():
                found = apart(partial(_check_op, op, recorded, False), str(op))
                found.unsearched |= {} if found.unchecked else {str(op): CRASH}
            totals.add(found)
    return totals


def apart(check: Callable[[], Totals], op: str) -> Totals:
    """Run a check in a forked process: some ops of PyTorch crash if shapes do not match.

    Raises `RuntimeError` if the check itself has failed.
    """
    if not hasattr(os, "fork"):
        return check()
    context = multiprocessing.get_context("fork")
    here, child = context.Pipe(duplex=False)

    def run() -> None:
        try:
            child.send(check())
        except Exception:  # noqa: BLE001 - raised again in the parent
            child.send(traceback.format_exc())

    process = context.Process(target=run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork beside threads; the child starts none
        process.start()
    child.close()
    try:
        found: Totals | str = here.recv()
    except EOFError:
        found = Totals(unchecked={op: CRASH})
    process.join()
    if isinstance(found, str):
        raise RuntimeError(f"checking {op}:\n{found}")
    return found


def _check_op(op: Any, recorded: Mapping[Any, Sequence[Call]], search: bool) -> Totals:
    """Check the calls of an op, or those that are made for it."""
    torch.set_num_threads(1)
    totals = Totals()
    calls, reason = recorded.get(op, ()), ""
    if not calls:
        calls, reason = derived(op, recorded, DERIVED)
        totals.derived = int(bool(calls))
    reasons = [_check(call, totals, search) for call in calls] or [f"no call: {reason}"]
    totals.ops = int(totals.calls > 0)
    if totals.searched:
        totals.searched, totals.unsearched = 1, {}
    if not totals.ops:
        totals.unchecked[str(op)] = reasons[0]
    return totals


def _check(call: Call, totals: Totals, search: bool) -> str:
    """Check a call; return the reason if it cannot be checked."""
    reason, case, declared = _case(call)
    if case is None or declared is None:
        totals.skip(reason)
        return reason
    with np.errstate(all="ignore"):
        prover = Prover(case)
        totals.calls += 1
        totals.rules += len(prover.rules[DEVICES[0]])
        totals.unknown += declared.unknown
        found: dict[str, Discrepancy] = {}
        row = str(call.op), str(call)
        for rule, devices, why in prover.wrong(prover.rules):
            found.setdefault(str(rule), Discrepancy(*row, str(rule), devices, why))
        totals.wrong += found.values()
        reason = _unsearched(call, prover) if search else ""
        if reason:
            totals.unsearched[str(call.op)] = reason
        elif search:
            totals.searched += 1
            lacking = [rule for rule in prover.missing(prover.rules) if _keeps(call, rule)]
            totals.missing += [Discrepancy(*row, str(r)) for r in confirmed(case, lacking)]
    return ""


def _unsearched(call: Call, prover: Prover) -> str:
    """Return the reason why no further rules of a call are searched, or an empty text."""
    if call.into:
        return "it writes into given tensors, which have the layout of the result"
    if not prover.is_comparable(all_broadcast(prover.case)):
        return "an input has few integers, with which rules would hold by chance"
    arrays = prover.case.draws[0]
    results = call.run(arrays)
    pairs = [(x, y) for x in arrays for y in results if x.dtype == y.dtype and _fits(x, y)]
    rows = [(np.broadcast_to(x, y.shape), y) for x, y in pairs]
    if any(not _same(x, y) and is_close(x, y, 1.0) for x, y in rows):
        return "a result differs from an input by less than rounding explains"
    return ""


def confirmed(case: Case, rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules that hold for many other draws of a call's inputs.

    With few numbers, more rules hold by chance, such as P(max) for a function that falls somewhere.
    """
    seeds = range(1, CONFIRMATIONS + 1) if rules else ()
    types = case.outputs + tuple(case.inputs[i] for i in case.overwrites)
    draws = [
        arrays for seed in seeds for arrays in _draws(case.attributes, case.draws[0], types, seed)
    ]
    trials = [
        Trial(case, arrays, parts, seed)
        for parts in case.devices
        for seed, arrays in enumerate(draws)
    ]
    return [
        rule
        for rule in rules
        if all(trial.holds(rule) for trial in trials if formable(case, rule, trial.parts))
    ]


def _keeps(call: Call, rule: Rule) -> bool:
    """Return whether tensors that the op overwrites and returns keep their layouts."""
    returned = [r for r in call.op._schema.returns if r.alias_info and r.alias_info.is_write]
    rows = zip(call.changed[: len(returned)], rule.outputs, strict=False)
    return all(rule.inputs[i] == output for i, output in rows)


def _case(call: Call) -> tuple[str, Case | None, Declared | None]:
    """Return a call as a case of the prover, or the reason why it is not checked."""
    if torch.Tag.nondeterministic_seeded in call.op.tags or "empty" in str(call.op):
        return "the result is random or not initialized", None, None
    own = _ascending(
        call, tuple(multiples(x.numpy()) for x in call.tensors if x.dtype != torch.bfloat16)
    )
    types = tuple(TensorType(x.shape, x.dtype) for x in own)
    if len(own) < len(call.tensors) or any(t.dtype.kind not in "fiub" for t in types):
        return "the element type is not supported", None, None
    if partials(types) is None:
        return "too many combinations of layouts", None, None
    try:
        results = call.run(own)
        again = call.run(own)
    except NONSENSE:
        return "the call fails with rounded inputs", None, None
    if not all(map(_same, results, again)):
        return "the result is random or not initialized", None, None
    outputs = tuple(TensorType(x.shape, x.dtype) for x in results)
    if not outputs or not all(t.size and t.dtype.kind in "fiub" for t in outputs):
        return "the result has no elements, or another type", None, None
    draws = _draws(call, own, outputs)
    if not draws:
        return "the results tell nothing about rules", None, None
    declared = Declared(call, types, len(outputs) - len(call.written))
    case = Case(
        name=str(call),
        inputs=types,
        outputs=outputs[: len(outputs) - len(call.written)],
        attributes=call,
        evaluate=lambda arrays, call: call.run(arrays),
        draws=draws,
        rules=declared.rules,
        localize=declared.localize if declared.is_local else None,
        devices=DEVICES,
        overwrites=call.written,
        repeatable=partials(types) or (),
        ranges=chunks,
    )
    return "", case, declared


def _fits(x: Array, y: Array) -> bool:
    """Return whether an array can be broadcast to the shape of another one."""
    sizes = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return x.ndim <= y.ndim and all(n in (1, m) for n, m in sizes)


def _same(x: Array, y: Array) -> bool:
    return bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))


def _draws(
    call: Call, own: tuple[Array, ...], outputs: Sequence[TensorType], seed: int = 0
) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    found = [own, *_deranged(own, seed), *drawn(own, [x.shape for x in own], rng)]
    found += _not_finite(own) if seed else ()
    drawings = [_ascending(call, arrays) for arrays in found]
    if "linalg" in str(call.op):
        drawings = [arrays for arrays in drawings if _is_stable(call, arrays)]
    for tells in (varied, not_zero):
        useful = conclusive(drawings, call.run, [t.shape for t in outputs], tells=tells)
        if useful:
            return useful
    return ()


def _is_stable(call: Call, arrays: tuple[Array, ...]) -> bool:
    """Return whether the results hardly depend on the last bits, unlike those of singular matrices.

    The last bits may differ between a matrix alone and in a batch.
    """
    rng = np.random.default_rng(0)
    moved = [
        x * (1 + rng.uniform(-1, 1, x.shape) * 2.0**-45) if x.dtype.kind == "f" else x
        for x in arrays
    ]
    try:
        pairs = zip(call.run(arrays), call.run(moved), strict=True)
        return all(np.allclose(a, b, 1e-6, 1e-9, equal_nan=True) for a, b in pairs)
    except NONSENSE:
        return False


def _ascending(call: Call, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Sort the arrays that the op takes sorted only."""
    return tuple(np.sort(x) if i in call.ascending else x for i, x in enumerate(arrays))


def _not_finite(own: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Yield the inputs with numbers that are not finite, of which some ops make finite ones."""
    for number in (np.nan, np.inf, -np.inf):
        for k, x in enumerate(own):
            if x.dtype.kind == "f":
                other = np.where(np.arange(x.size).reshape(x.shape) % 3 == 0, number, x)
                yield (*own[:k], other.astype(x.dtype), *own[k + 1 :])


def _deranged(own: tuple[Array, ...], seed: int) -> Iterator[tuple[Array, ...]]:
    """Yield the inputs with other signs of floating point numbers, and other truth values.

    The rules of `where` must hold for both values of a condition with one element.
    """
    yield tuple(-x if x.dtype.kind == "f" else ~x if x.dtype.kind == "b" else x for x in own)
    if any(x.dtype.kind == "b" for x in own):
        rng = np.random.default_rng(seed)
        flips = (np.asarray(rng.random(x.shape) < 0.5) for x in own)
        rows = zip(own, flips, strict=True)
        yield tuple(other if x.dtype.kind == "b" else x for x, other in rows)
