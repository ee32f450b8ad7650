"""Wrong lists of SBP rules, made from right ones: the prover must refuse each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.sbp import Partial, Sbp, Signature
from flow_core.testing.prover import DEVICES, Prover, Rules, all_broadcast, formable, implies, kinds


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong list of rules.

    Attributes:
        rule: the rule that was changed.
        instead: what it was changed to, None when it was dropped.
        rules: the list, per number of devices.
    """

    rule: Signature
    instead: Signature | None
    rules: Rules

    def __str__(self) -> str:
        return f"{self.rule} {'dropped' if self.instead is None else f'as {self.instead}'}"


def mutants(prover: Prover) -> Iterator[Mutant]:
    """Each rule dropped, and each of its entries changed to every other one that makes no rule.

    Rules that some number of devices cannot form are left alone: nothing tells them apart there.
    """
    if not prover.tells_all:
        return
    rules = prover.listed()
    known = {*rules[2], *rules[3], all_broadcast(prover.case)}
    for rule in rules[3]:
        able = [n for n in DEVICES if formable(prover.case, rule, n)]
        if 3 in able and all(rule in rules[n] for n in able):
            yield Mutant(rule, None, _changed(rules, rule, ()))
            for instead in _variants(prover, rule):
                if not any(implies(r, instead) for r in known):
                    yield Mutant(rule, instead, _changed(rules, rule, (instead,)))


def _changed(rules: Rules, rule: Signature, instead: tuple[Signature, ...]) -> Rules:
    return {n: (*(r for r in row if r != rule), *instead) for n, row in rules.items()}


def _variants(prover: Prover, rule: Signature) -> Iterator[Signature]:
    """The rule with one entry changed; unread inputs, of which P says as much as B, stay."""
    asked, unread = prover.case.asked, prover.unread()
    entries, count = (*rule.inputs, *rule.outputs), len(rule.inputs)
    for i, type_ in enumerate((*asked.inputs, *asked.outputs)):
        for sbp in kinds(type_, 3):
            silent = i in unread and isinstance(sbp, Partial)
            if sbp != entries[i] and not silent:
                changed: tuple[Sbp, ...] = (*entries[:i], sbp, *entries[i + 1 :])
                yield Signature(changed[:count], changed[count:])


def survivors(prover: Prover) -> tuple[int, tuple[Mutant, ...]]:
    """How many mutants there are, and those that pass for right."""
    made = tuple(mutants(prover))
    return len(made), tuple(m for m in made if prover.judge(m.rules))
