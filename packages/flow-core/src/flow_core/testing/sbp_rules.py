"""The kit for SBP rules: subclass `SbpRuleKit`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar

import pytest

from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import KernelQuery, OpSpec, SbpContext
from flow_core.sharding.sbp import B, Sbp, Signature, Split
from flow_core.testing.checks import query
from flow_core.testing.kit import Kit, Parameters
from flow_core.testing.prover_cases import arrays_of, cases
from flow_rules.mutants import survivors
from flow_rules.prover import MOST, Prover


class SbpRuleKit(Kit):
    """Tests that prove by brute force that SBP rules are valid and complete.

    They also check that the prover rejects mutants of the rules.  See `flow_rules.prover`
    for the method.  Internal ops have no rules.  An op with `OpSpec.per_device` treats each
    device's part as a whole, so rules that the op does not list are not searched for.

    Attributes:
        cases: how many cases of an op to try, None for all; a case may take seconds.
        searched: the ops to check for missing rules and mutants, None for all; these checks take
            longer than checking the listed rules.
    """

    draws = 1
    cases: ClassVar[int | None] = 2
    searched: ClassVar[tuple[str, ...] | None] = None

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the ops of the plugin under test."""
        for op in self.own_ops():
            if self._applies(check, self.shared_registry().ops[op]):
                yield (op,)

    def _applies(self, check: str, spec: OpSpec) -> bool:
        """Return whether a test applies to an op."""
        if spec.internal:
            return False
        searches = check in ("no_rule_is_missing", "mutants_are_killed")
        if searches and self.searched is not None and spec.type not in self.searched:
            return False
        return check != "no_rule_is_missing" or spec.per_device is None

    @classmethod
    def totals(cls) -> Counter[str]:
        """Return the counts of trials."""
        return cls.once("totals", Counter)

    @classmethod
    def started(cls) -> float:
        """Return the start time of the first test."""
        return cls.once("started", time.perf_counter)

    @classmethod
    def setup_class(cls) -> None:
        """Record the start time."""
        cls.started()

    def provers(self, op: str) -> tuple[Prover, ...]:
        """Return a prover for each case of an op; skip the test if the op has no case."""
        made = self.once(("provers", op), lambda: tuple(self._provers(op)))
        if not made:
            pytest.skip("all samples of this op are special cases")
        return made

    def _provers(self, op: str) -> Iterator[Prover]:
        spec = self.shared_registry().ops[op]
        self.totals()["ops"] += 1
        found = (Prover(case) for case in cases(spec, self.drawn(op)))
        for prover in islice(found, self.cases):
            able = prover.combinations <= MOST
            self.totals()["cases" if able else "cases left out"] += 1
            if able:
                yield prover

    def _count(self, prover: Prover, what: str) -> None:
        """Add the number of a prover's trials to the counts, and clear the prover's caches."""
        self.totals()[f"trials of {what}"] += prover.checks
        prover.checks = 0
        prover.forget()

    @classmethod
    def teardown_class(cls) -> None:
        """Print the counts."""
        words = ", ".join(f"{number} {what}" for what, number in cls.totals().items())
        sys.stdout.write(
            f"\n{cls.__name__}: {words}, {time.perf_counter() - cls.started():.0f} s\n"
        )

    # ------------------------------------------------------------------------------- tests

    def test_there_is_something_to_test(self) -> None:
        """Check that the plugin has ops."""
        assert self.own_ops(), f"plugin {self.plugin!r} registers no ops"

    def test_rules_are_well_formed(self, name: str) -> None:
        """Check that rules have an entry per tensor and valid axes; no rule is double or all B."""
        spec = self.shared_registry().ops[name]
        for sample in self.drawn(name):
            asked = query(spec, arrays_of(sample), sample.attrs)
            rules = spec.sbp(SbpContext(asked.inputs, asked.outputs, asked.attrs))
            assert len(set(rules)) == len(rules), f"{name} has a duplicate rule: {_text(rules)}"
            for rule in rules:
                assert len(rule.inputs) == len(asked.inputs), f"{name}: {rule}"
                assert len(rule.outputs) == len(asked.outputs), f"{name}: {rule}"
                assert all(_exists(*row) for row in _tensors(asked, rule)), f"{name}: {rule}"
                assert {*rule.inputs, *rule.outputs} != {B}, f"{name} lists {rule}: always so"

    def test_rules_hold(self, name: str) -> None:
        """Check that every listed rule yields the logical result, also for uneven splits."""
        for prover in self.provers(name):
            wrong = prover.wrong(prover.listed())
            self._count(prover, "rules")
            for rule, parts, why in wrong:
                raise AssertionError(f"{prover.case} on {parts} devices: {rule} is wrong: {why}")

    def test_no_rule_is_missing(self, name: str) -> None:
        """Check that every signature that holds in all trials of a case is listed or implied."""
        for prover in self.provers(name):
            missing = prover.missing(prover.listed())
            self._count(prover, "rules searched")
            assert not missing, f"{prover.case} lacks {_text(missing)}"

    def test_mutants_are_killed(self, name: str) -> None:
        """Check that the prover detects a dropped rule, and a change to any entry of a rule."""
        for prover in self.provers(name):
            count, alive = survivors(prover)
            self.totals()["mutants"] += count
            self._count(prover, "rules of mutants")
            assert not alive, f"{prover.case}: {'; '.join(map(str, alive))} is not detected"


def _tensors(asked: KernelQuery, rule: Signature) -> Iterator[tuple[Sbp, TensorType]]:
    """Yield the SBP and the type of each input and output."""
    types = (*asked.inputs, *asked.outputs)
    return zip((*rule.inputs, *rule.outputs), types, strict=True)


def _exists(sbp: Sbp, type_: TensorType) -> bool:
    return not isinstance(sbp, Split) or 0 <= sbp.axis < len(type_.shape)


def _text(rules: Sequence[object]) -> str:
    return "; ".join(sorted(map(str, rules)))
