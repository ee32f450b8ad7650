"""Assignment of tokens to the slots of experts, for mixtures of experts.

Each expert has a fixed number of slots per group of tokens, so that the shapes of a plan do not
depend on how many tokens choose an expert.  The slots of an expert are taken in the order of the
choices, and then of the tokens: all first choices come before all second ones (Lepikhin et al.,
2020, "GShard", algorithm 1).  Groups are independent: the slots of a group do not depend on the
device that computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import int32
from flow_core.ir.graph import tensor_type
from flow_core.ops.array.index import checked_index
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures
from flow_core.plugins.specs import REQUIRED, InferContext, Sample, SbpContext
from flow_core.sharding.sbp import S, Signatures


class ExpertSlots(OpDef):
    """The slot of each choice, the token in each slot, and the number of choices of each expert.

    The input has the experts that the tokens choose, of shape (groups, choices, tokens).  ``slots``
    has its shape and numbers the slots of all experts of a group, -1 for a choice beyond the
    capacity or of an expert that does not exist; ``tokens`` (groups, experts, capacity) is -1 for
    empty slots; ``load`` (groups, choices, experts) also counts choices without a slot.
    """

    schema = "expert_slots(chosen) -> slots, tokens, load"
    attrs = {"experts": REQUIRED, "capacity": REQUIRED}

    def infer(self, ctx: InferContext) -> Types:
        chosen = checked_index(ctx, 0)
        experts, capacity = ctx.attrs["experts"], ctx.attrs["capacity"]
        shape = chosen.shape
        ctx.check(len(shape) == 3, f"chosen experts {chosen}", "shape (groups, choices, tokens)")
        positive = experts > 0 and capacity > 0
        ctx.check(positive, f"experts {experts}, capacity {capacity}", "positive numbers")
        groups, choices, _ = shape
        return (
            tensor_type(shape, int32),
            tensor_type((groups, experts, capacity), int32),
            tensor_type((groups, choices, experts), int32),
        )

    def sbp(self, ctx: SbpContext) -> Signatures:
        return signatures((S(0), (S(0), S(0), S(0))))

    def reference(self, chosen: Array, *, experts: int, capacity: int) -> tuple[Any, Any, Any]:
        groups, choices, _ = chosen.shape
        slots = np.full(chosen.shape, -1, np.int32)
        tokens = np.full((groups, experts, capacity), -1, np.int32)
        load = np.zeros((groups, choices, experts), np.int32)
        for group, choice, token in np.ndindex(*chosen.shape):
            expert = int(chosen[group, choice, token])
            if not 0 <= expert < experts:
                continue
            place = load[group, :, expert].sum()
            load[group, choice, expert] += 1
            if place < capacity:
                slots[group, choice, token] = expert * capacity + place
                tokens[group, expert, place] = token
        return slots, tokens, load

    def samples(self, rng: Rng) -> Samples:
        for shape, experts, capacity, dtype, note in (
            ((2, 1, 6), 3, 2, np.int32, "one choice, some without a slot"),
            ((4, 2, 5), 4, 4, np.int64, "two choices"),
            ((1, 3, 2), 2, 1, np.int8, "fewer tokens than choices"),
            ((2, 1, 1), 1, 1, np.uint8, "one token, one expert"),
            ((2, 1, 3), 7, 5, np.int32, "empty experts, more slots than tokens"),
            ((2, 2, 700), 5, 200, np.int32, "many tokens"),
            ((0, 1, 3), 2, 2, np.int32, "no groups"),
            ((2, 1, 0), 2, 2, np.int32, "no tokens"),
        ):  # fmt: skip
            chosen = rng.integers(0, experts, shape).astype(dtype)
            yield Sample((chosen,), {"experts": experts, "capacity": capacity}, note=note)
        outside = np.array([[[0, -1, 2, 0, 3, 127, 1]]], np.int8)
        yield Sample((outside,), {"experts": 3, "capacity": 2}, note="experts that do not exist")


OPS = specs(ExpertSlots)
