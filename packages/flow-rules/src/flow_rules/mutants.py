"""Mutants of correct lists of rules, each of which the prover must reject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_rules.layouts import B, Layout, Partial, Rule
from flow_rules.prover import Prover, all_broadcast, formable, implies, kinds


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong list of rules, made by changing or dropping a rule of a correct list."""

    rule: Rule  # the original rule
    instead: Rule | None = None  # the changed rule, or None if the rule was dropped

    def __str__(self) -> str:
        return f"{self.rule} {'dropped' if self.instead is None else f'as {self.instead}'}"


def mutants(prover: Prover) -> Iterator[Mutant]:
    """Yield the mutants of an op's list of rules.

    In each, one rule is dropped, or one entry of a rule is changed such that the rule is invalid.
    Rules for which the prover does not search are not dropped.  Rules with empty parts on some
    number of devices are skipped, because their mutants may be equivalent to them.
    """
    rules = prover.listed()
    known = {*rules[2], *rules[3], all_broadcast(prover.case)}
    for rule in rules[3]:
        able = [n for n in prover.case.devices if formable(prover.case, rule, n)]
        if 3 in able and all(rule in rules[n] for n in able):
            if prover.searches(rule):
                yield Mutant(rule)
            for instead in _variants(prover, rule):
                if not any(implies(r, instead) for r in known) and prover.is_comparable(instead):
                    yield Mutant(rule, instead)


def _variants(prover: Prover, rule: Rule) -> Iterator[Rule]:
    """Yield the rule with one entry changed to a layout that is not equivalent.

    P and B are equivalent for inputs of which only the shape is read.  An entry of a variable that
    the op overwrites is changed to P only if some rule lists P for that variable.
    """
    case, unread = prover.case, prover.unread
    entries, count = (*rule.inputs, *rule.outputs), len(rule.inputs)
    for i, type_ in enumerate((*case.inputs, *case.outputs)):
        for layout in kinds(type_, 3):
            silent = i in unread and _is_equivalent(entries[i], layout)
            silent = silent or (i < count and not prover.is_conclusive(i))
            silent = silent or (isinstance(layout, Partial) and not prover.may_be(i, layout))
            if layout != entries[i] and not silent:
                changed: tuple[Layout, ...] = (*entries[:i], layout, *entries[i + 1 :])
                yield Rule(changed[:count], changed[count:])


def _is_equivalent(layout: Layout, other: Layout) -> bool:
    """Return whether two layouts of an unread input are equivalent, as both keep its full shape."""
    return isinstance(other, Partial) or (other == B and isinstance(layout, Partial))


def is_noticed(prover: Prover, mutant: Mutant) -> bool:
    """Return whether the prover reports a dropped rule as missing, or a changed rule as wrong."""
    if mutant.instead is None:
        return mutant.rule in prover.valid()
    return not prover.holds_wherever(mutant.instead)


def survivors(prover: Prover) -> tuple[int, tuple[Mutant, ...]]:
    """Return the number of mutants, and the mutants that the prover does not detect."""
    made = tuple(mutants(prover))
    return len(made), tuple(m for m in made if not is_noticed(prover, m))
