"""Wrong lists of SBP rules, made from right ones: the prover must refuse each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.sharding.sbp import B, Partial, Sbp, Signature
from flow_core.testing.prover import DEVICES, Prover, all_broadcast, formable, implies, kinds


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong list of rules.

    Attributes:
        rule: the rule that was changed.
        instead: what it was changed to, None when it was dropped.
    """

    rule: Signature
    instead: Signature | None = None

    def __str__(self) -> str:
        return f"{self.rule} {'dropped' if self.instead is None else f'as {self.instead}'}"


def mutants(prover: Prover) -> Iterator[Mutant]:
    """Each rule dropped, and each of its entries changed to every other one that makes no rule.

    Rules with layouts that are not searched for are not dropped: nobody would miss them.

    Rules that some number of devices cannot form are left alone: nothing tells them apart there.
    """
    rules = prover.listed()
    known = {*rules[2], *rules[3], all_broadcast(prover.case)}
    for rule in rules[3]:
        able = [n for n in DEVICES if formable(prover.case, rule, n)]
        if 3 in able and all(rule in rules[n] for n in able):
            if prover.searches(rule):
                yield Mutant(rule)
            for instead in _variants(prover, rule):
                if not any(implies(r, instead) for r in known) and prover.is_comparable(instead):
                    yield Mutant(rule, instead)


def _variants(prover: Prover, rule: Signature) -> Iterator[Signature]:
    """The rule with one entry changed; unread inputs, of which P says as much as B, stay."""
    asked, unread = prover.case.asked, prover.unread
    entries, count = (*rule.inputs, *rule.outputs), len(rule.inputs)
    for i, type_ in enumerate((*asked.inputs, *asked.outputs)):
        for sbp in kinds(type_, 3):
            silent = i in unread and _says_as_much(entries[i], sbp)
            silent = silent or (i < count and not prover.is_told(i))
            if sbp != entries[i] and not silent:
                changed: tuple[Sbp, ...] = (*entries[:i], sbp, *entries[i + 1 :])
                yield Signature(changed[:count], changed[count:])


def _says_as_much(sbp: Sbp, other: Sbp) -> bool:
    """Whether two layouts of an unread input come to the same, as they have its whole shape."""
    return isinstance(other, Partial) or (other == B and isinstance(sbp, Partial))


def is_noticed(prover: Prover, mutant: Mutant) -> bool:
    """Whether a dropped rule is found to be missing, or a changed one to be wrong."""
    if mutant.instead is None:
        return mutant.rule in prover.valid()
    return not prover.holds_wherever(mutant.instead)


def survivors(prover: Prover) -> tuple[int, tuple[Mutant, ...]]:
    """How many mutants there are, and those that pass for right."""
    made = tuple(mutants(prover))
    return len(made), tuple(m for m in made if not is_noticed(prover, m))
