"""Branches: one of two bodies runs, chosen by a number that the step computes.

The gradient is a branch, too: it computes the chosen body again, and then its gradients.  Inputs
that only the other body reads have gradients of 0.
"""

from __future__ import annotations

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ops.build import GradContext
from flow_core.ops.control.bodies import Body, BodyGradient, body_graph, is_random, run_body
from flow_core.ops.control.layouts import body_work, local_body, settled, splits
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, Sbp, Signature, Signatures


def cond_type(then: Body, otherwise: Body) -> str:
    """Return the type of the op that runs one of two bodies."""
    return "random_cond" if is_random(then) or is_random(otherwise) else "cond"


class Cond(OpDef):
    """The results of the body ``then`` where ``on``, of shape (1,), is not 0, else those of
    ``otherwise``; both bodies have all further inputs.
    """

    schema = "cond(on, x*) -> out*"
    attrs = {"then": REQUIRED, "otherwise": REQUIRED, "draws_as": ""}

    def infer(self, ctx: InferContext) -> Types:
        on, *rest = ctx.inputs
        ctx.check(on.shape == (1,), f"a condition {on}", "a condition of shape (1,)")
        graphs = [body_graph(body, tuple(rest)) for body in bodies(ctx.attrs)]
        first, second = (tuple(map(graph.type_of, graph.results)) for graph in graphs)
        found = (", ".join(map(str, types)) for types in (first, second))
        ctx.check(first == second, " and ".join(found), "results of the same types")
        return first

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split an axis of the inputs, if the ops of both bodies can do so."""
        types = ctx.inputs[1:]
        found: dict[Signature, None] = {}
        for given in splits(types, range(len(types))):
            first, second = bodies(ctx.attrs)
            both = settled(first, types, given, 0, ctx.parts)
            other = both and settled(second, types, both[0], 0, ctx.parts)
            if both is None or other is None:
                continue
            if other[0] != both[0]:  # the second body changed the SBPs of inputs
                both = settled(first, types, other[0], 0, ctx.parts)
            if both is None or both[0] != other[0]:
                continue
            zeros = [_zeros(body) for body in (first, second)]
            outputs = tuple(
                _agreed(x, y, *(i in row for row in zeros))
                for i, (x, y) in enumerate(zip(both[1], other[1], strict=True))
            )
            if None not in outputs:
                found[Signature((B, *both[0]), tuple(s for s in outputs if s is not None))] = None
        return tuple(found)

    def localize(self, ctx: LocalContext) -> Attributes:
        local = (local_body(body, ctx.inputs[1:]) for body in bodies(ctx.attrs))
        return dict(zip(("then", "otherwise"), local, strict=True))

    def work(self, ctx: SbpContext) -> float:
        return max(body_work(body, ctx.inputs[1:]) for body in bodies(ctx.attrs))

    def gradient(self, g: GradContext) -> Gradients:
        return _gradient(g)

    def reference(
        self, on: Array, *inputs: Array, then: Body, otherwise: Body, draws_as: str
    ) -> tuple[Array, ...]:
        return run_body(then if np.asarray(on).reshape(()) != 0 else otherwise, inputs)

    def samples(self, rng: Rng) -> Samples:
        """Yield samples that take each branch; one branch alone reads the second input."""
        x, y = rng.uniform(0.5, 2, (2, 2, 3))
        for on in (np.ones(1, np.int8), np.zeros(1, np.int8)):
            yield Sample((on, x, y), {"then": _ROOT, "otherwise": _PRODUCT})
            yield Sample((on, y, x), {"then": _PRODUCT, "otherwise": _ROOT})
        nan, attrs = np.array([np.nan], np.float32), {"then": _ROOT, "otherwise": _PRODUCT}
        yield Sample((nan, x, y), attrs, False)


class RandomCond(Cond):
    """A branch with a body that draws random numbers."""

    schema = "random_cond(on, x*) -> out*"
    random = True

    def samples(self, rng: Rng) -> Samples:
        """Yield samples that take each branch, of which one draws random numbers."""
        yield next(super().samples(rng))
        p, x = rng.uniform(0.2, 0.8, (2, 4, 5))
        for on in (np.ones(1, np.int8), np.zeros(1, np.int8)):
            yield Sample((on, p, x), {"then": _TOSSES, "otherwise": _PRODUCT}, False, "draws")
            yield Sample((on, x, p), {"then": _PRODUCT, "otherwise": _TOSSES}, False, "draws")


_ROOT: Body = ((("root", "sqrt", ((-1, 0),), ()),), ((0, 0), (-1, 0)))
_PRODUCT: Body = (
    (("product", "multiply", ((-1, 0), (-1, 1)), ()), ("minus", "negative", ((0, 0),), ())),
    ((0, 0), (1, 0)),
)
_TOSSES: Body = ((("tosses", "bernoulli", ((-1, 0),), ()),), ((0, 0), (-1, 1)))
"""The bodies of the samples."""


def bodies(attrs: Attributes) -> tuple[Body, Body]:
    """Return the bodies of a branch."""
    return attrs["then"], attrs["otherwise"]


def _zeros(body: Body) -> set[int]:
    """Return the numbers of the results that are 0 whatever the inputs."""
    return {k for k, (row, _) in enumerate(body[1]) if row >= 0 and body[0][row][1] == "zero_like"}


def _agreed(x: Sbp, y: Sbp, x_is_zero: bool, y_is_zero: bool) -> Sbp | None:
    """Return the SBP of a result of both bodies: zeros are also the parts of a sum."""
    if x == y:
        return x
    return P if (x == P and y_is_zero) or (y == P and x_is_zero) else None


def _gradient(g: GradContext) -> Gradients:
    types = [x.type for x in g.inputs[1:]]
    given = {k: x for k, x in enumerate(g.grads) if x is not None}
    wanted = [i for i, t in enumerate(types) if t.dtype.is_floating and g.needed[i + 1]]
    works = [BodyGradient(body, types, g.backward) for body in bodies(g.attrs)]
    made, literals = list[set[int]](), []
    for work in works:
        seeds = [work.input(x.type) for x in given.values()]
        pairs = ((work.results[k], seed) for k, seed in zip(given, seeds, strict=True))
        found = work.gradients(pairs, [work.inputs[i] for i in wanted])
        made.append({i for i in wanted if work.inputs[i] in found})
        zero_or = [found.get(x) or work.zero(x) for x in (work.inputs[i] for i in wanted)]
        literals.append((work, seeds, dict(zip(wanted, zero_or, strict=True))))
    kept = [i for i in wanted if any(i in row for row in made)]
    if not kept:
        return [None] * len(g.inputs)
    results = [[found[i] for i in kept] for _, _, found in literals]
    reads = [(work, work.read(row)) for work, row in zip(works, results, strict=True)]
    needed = [i for i in range(len(types)) if any(work.inputs[i] in read for work, read in reads)]
    chosen = [
        work.literal([*(work.inputs[i] for i in needed), *seeds], row)
        for (work, seeds, _), row in zip(literals, results, strict=True)
    ]
    outputs = g.all(
        cond_type(*chosen), g.inputs[0], *(g.inputs[i + 1] for i in needed), *given.values(),
        then=chosen[0], otherwise=chosen[1], draws_as=g.attrs["draws_as"] or g.op.name,
    )  # fmt: skip
    of_input = dict(zip(kept, outputs, strict=True))
    return [None, *(of_input.get(i) for i in range(len(types)))]


OPS = specs(Cond, RandomCond)
