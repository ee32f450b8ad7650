"""All formats by name."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzing import caches, columns, pictures, plans, records, states, tables, wire
from fuzzing.target import Target

TARGETS: Mapping[str, Target] = {
    target.name: target
    for module in (records, columns, pictures, tables, plans, caches, states, wire)
    for target in module.TARGETS
}
