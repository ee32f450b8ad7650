"""Loops: a body that runs for each element along axis 0 of its sequences, with carried values.

The gradient is a loop in the other order.  It computes the body of each position again, from the
carries before it, which a loop to be differentiated returns for all positions, and from those other
results that the program uses.  Gradients of weights of matrix products are computed after it, of
all positions together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import GraphError
from flow_core.base.shapes import num_elements
from flow_core.ir.graph import Op, TensorType, Value, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.control.bodies import Body, BodyGradient, body_graph, is_random, run_body
from flow_core.ops.control.layouts import body_work, local_body, settled, splits
from flow_core.ops.declare import Attributes, Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.plugins.specs import REQUIRED, InferContext, LocalContext, Part, Sample, SbpContext
from flow_core.sharding.sbp import S, Sbp, Signature, Signatures, Split


def scan_type(body: Body) -> str:
    """Return the type of the op that runs a body for each element."""
    return "random_scan" if is_random(body) else "scan"


def positions(length: int, reverse: bool) -> range:
    """Return the positions of a loop in their order."""
    return range(length)[:: -1 if reverse else 1]


class Scan(OpDef):
    """A loop over sequences: its inputs are the first carries, the sequences, and what the body
    reads from outside; its outputs are the last carries, and the other results of the body, stacked
    along axis 0.
    """

    schema = "scan(x*) -> out*"
    attrs = {
        "body": REQUIRED, "carries": REQUIRED, "sequences": REQUIRED, "length": REQUIRED,
        "reverse": False, "draws_as": "",
    }  # fmt: skip

    def infer(self, ctx: InferContext) -> Types:
        carries, length = ctx.attrs["carries"], ctx.attrs["length"]
        stop = carries + ctx.attrs["sequences"]
        sequences = ctx.inputs[carries:stop]
        fits = length >= 0 and all(t.shape[:1] == (length,) for t in sequences)
        ctx.check(fits, f"sequences {', '.join(map(str, sequences))}", f"{length} on axis 0")
        graph = body_graph(ctx.attrs["body"], types_within(ctx.inputs, ctx.attrs))
        results = tuple(map(graph.type_of, graph.results))
        found, wanted = (", ".join(map(str, row[:carries])) for row in (results, ctx.inputs))
        ctx.check(found == wanted, f"next carries {found}", f"{wanted}, as the carries before")
        stacked = (tensor_type((length, *t.shape), t.dtype) for t in results[carries:])
        return (*results[:carries], *stacked)

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Split an axis of carries and elements, if the ops of the body can do so."""
        carries, stop = ctx.attrs["carries"], ctx.attrs["carries"] + ctx.attrs["sequences"]
        groups = range(stop), range(carries, stop), range(carries)
        types = types_within(ctx.inputs, ctx.attrs)
        found: dict[Signature, None] = {}
        for given in splits(types, *groups):
            both = settled(ctx.attrs["body"], types, given, carries, ctx.parts)
            if both is not None:
                inputs, results = both
                stacked = (*map(_outside, inputs[carries:stop]),)
                outputs = (*results[:carries], *map(_outside, results[carries:]))
                found[Signature((*inputs[:carries], *stacked, *inputs[stop:]), outputs)] = None
        return tuple(found)

    def localize(self, ctx: LocalContext) -> Attributes:
        carries, stop = ctx.attrs["carries"], ctx.attrs["carries"] + ctx.attrs["sequences"]
        parts = [
            Part(_element(part.type), part.region[1:]) if carries <= i < stop else part
            for i, part in enumerate(ctx.inputs)
        ]
        return {"body": local_body(ctx.attrs["body"], parts, carries)}

    def work(self, ctx: SbpContext) -> float:
        work = body_work(ctx.attrs["body"], types_within(ctx.inputs, ctx.attrs))
        return float(work * ctx.attrs["length"])

    def gradient(self, g: GradContext) -> Gradients:
        return _gradient(g)

    def reference(
        self, *inputs: Array, body: Body, carries: int, sequences: int, length: int, reverse: bool,
        draws_as: str,
    ) -> tuple[Array, ...]:  # fmt: skip
        values, xs = inputs[:carries], inputs[carries : carries + sequences]
        outside, rows = inputs[carries + sequences :], dict[int, Sequence[Array]]()
        for t in positions(length, reverse):
            results = run_body(body, (*values, *(x[t] for x in xs), *outside))
            values, rows[t] = results[:carries], results[carries:]
        if rows:
            return (*values, *map(np.stack, zip(*(rows[t] for t in range(length)), strict=True)))
        types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in inputs)
        attrs = {"carries": carries, "sequences": sequences}
        graph = body_graph(body, types_within(types, attrs))
        empty = (graph.type_of(v) for v in graph.results[carries:])
        return (*values, *(np.empty((0, *t.shape), t.dtype.numpy) for t in empty))

    def samples(self, rng: Rng) -> Samples:
        """Yield running sums, a recurrent layer, and two carries that change places."""
        for length, reverse in ((3, False), (4, True), (1, False), (0, False)):
            attrs = {"carries": 1, "sequences": 1, "length": length, "reverse": reverse}
            x = rng.uniform(-1, 1, (length, 2, 3))
            first = rng.uniform(-1, 1, (2, 3))
            yield Sample((first, x), {"body": _SUM, **attrs})
            weight = rng.uniform(-1, 1, (3, 3))
            yield Sample((first, x, weight), {"body": _RECURRENT, **attrs})
        pair = rng.uniform(-1, 1, (2, 4))
        yield Sample(
            (pair[0], pair[1]), {"body": _EXCHANGE, "carries": 2, "sequences": 0, "length": 5}
        )


class RandomScan(Scan):
    """A loop whose body draws other random numbers at each position."""

    schema = "random_scan(x*) -> out*"
    random = True

    def samples(self, rng: Rng) -> Samples:
        """Yield loops of one position, and others whose draws are certain: references have one
        step, and each position has another one.
        """
        yield next(super().samples(rng))
        first = rng.uniform(-1, 1, (4, 5))
        for length, reverse in ((1, False), (3, False), (3, True), (0, False)):
            chances = rng.uniform(0.2, 0.8, (length, 4, 5))
            x = chances if length == 1 else np.rint(chances)
            attrs = {"carries": 1, "sequences": 1, "length": length, "reverse": reverse}
            for body in _TOSSES:
                yield Sample((first, x), {"body": body, **attrs}, False, "draws")
        pair = np.rint(rng.uniform(0, 1, (2, 9)))
        attrs = {"carries": 2, "sequences": 0, "length": 5}
        yield Sample((pair[0], pair[1]), {"body": _EXCHANGED_TOSS, **attrs}, False, "draws")


_SUM: Body = (
    (
        ("sum", "broadcast_add", ((-1, 0), (-1, 1)), ()),
        ("twice", "scalar_mul", ((0, 0),), (("operand", 2.0),)),
    ),
    ((0, 0), (1, 0), (-1, 0)),
)
_RECURRENT: Body = (
    (
        ("product", "matmul", ((-1, 0), (-1, 2)), (("transpose_a", False), ("transpose_b", False))),
        ("sum", "broadcast_add", ((0, 0), (-1, 1)), ()),
        ("tanh", "tanh", ((1, 0),), ()),
    ),
    ((2, 0), (-1, 0)),
)
_EXCHANGE: Body = (
    (("product", "multiply", ((-1, 0), (-1, 1)), ()),),
    ((-1, 1), (0, 0), (-1, 0), (-1, 1)),
)
_TOSSES: tuple[Body, ...] = tuple(
    (
        (
            ("toss", "bernoulli", ((-1, 1),), ()),
            ("next", f"broadcast_{combine}", ((-1, 0), (0, 0)), ()),
        ),
        ((1, 0), (0, 0), (-1, 0)),
    )
    for combine in ("add", "sub")
)
_EXCHANGED_TOSS: Body = (
    (("toss", "bernoulli", ((-1, 0),), ()),),
    ((-1, 1), (0, 0), (-1, 0), (-1, 1)),
)
"""The bodies of the samples."""


def _element(type_: TensorType) -> TensorType:
    return tensor_type(type_.shape[1:], type_.dtype)


def types_within(types: Sequence[TensorType], attrs: Attributes) -> tuple[TensorType, ...]:
    """Return the types of the inputs of the body."""
    carries, stop = attrs["carries"], attrs["carries"] + attrs["sequences"]
    return (*types[:carries], *map(_element, types[carries:stop]), *types[stop:])


def _outside(sbp: Sbp) -> Sbp:
    """Return the SBP of a sequence whose elements have an SBP."""
    return S(sbp.axis + 1) if isinstance(sbp, Split) else sbp


def _gradient(g: GradContext) -> Gradients:
    """Emit the loop of the gradients.

    It carries the gradients of the carries, and the sums of those of what the body reads from
    outside; its sequences are the carries, the elements, and the other results and their gradients.
    """
    count, stop = g.attrs["carries"], g.attrs["carries"] + g.attrs["sequences"]
    types = types_within([x.type for x in g.inputs], g.attrs)
    floating = [t.dtype.is_floating for t in types]

    # the body, and its gradients from those of the carries after it and of its other results
    work = BodyGradient(g.attrs["body"], types, g.backward)
    carried = [i for i in range(count) if floating[i]]
    later = {i: work.input(types[i]) for i in carried}
    given = {k: x for k, x in enumerate(g.grads) if x is not None and k >= count}
    seeds = {k: work.input(_element(x.type)) for k, x in given.items()}
    wanted = [i for i, f in enumerate(floating) if f and (i < count or g.needed[i])]
    pairs = [(work.results[k], seed) for k, seed in (later | seeds).items()]
    found = work.gradients(pairs, [work.inputs[i] for i in wanted])
    made = {i: found[work.inputs[i]] for i in wanted if work.inputs[i] in found}

    # what the loop passes to the new body for each position
    stacked = {work.inputs[i]: g.outputs[k] for i, k in enumerate(_states(g))}
    stacked |= {work.inputs[i]: g.inputs[i] for i in range(count, stop)}
    stacked |= {seeds[k]: x for k, x in given.items()}
    stacked |= {v: g.outputs[k] for k in given if (v := work.results[k]) not in work.inputs}

    # the results of the new body: the next carries, and the gradients of elements
    products = {i: op for i, value in made.items() if i >= stop and g.attrs["length"]
                if (op := _product(work, value, stacked)) is not None}  # fmt: skip
    sums = {i: work.input(types[i]) for i in made if i >= stop and i not in products}
    totals = {i: work.sum(total, made[i]) for i, total in sums.items()}
    before = {i: made.get(i) or work.zero(work.inputs[i]) for i in carried}
    rows = {i: made[i] for i in made if count <= i < stop}
    factors = dict.fromkeys(v for op in products.values() for v in op.inputs if v not in stacked)
    results = [*before.values(), *totals.values(), *rows.values(), *factors]

    # its inputs, with what the loop passes to them
    first = [g.grads[i] or g.one("zero_like", g.outputs[i]) for i in carried]
    first += [g.one("zero_like", g.inputs[i]) for i in sums]
    read = work.read(results, stacked)
    sequences = [pair for pair in stacked.items() if pair[0] in read]
    outside = [(work.inputs[i], g.inputs[i]) for i in range(stop, len(types))]
    outside = [pair for pair in outside if pair[0] in read]
    within = [*later.values(), *sums.values(), *(v for v, _ in (*sequences, *outside))]
    body = work.literal(within, results)
    outputs = g.all(
        scan_type(body), *first, *(x for _, x in (*sequences, *outside)), body=body,
        carries=len(first), sequences=len(sequences), length=g.attrs["length"],
        reverse=not g.attrs["reverse"], draws_as=g.attrs["draws_as"] or g.op.name,
    )  # fmt: skip
    known = zip((*before, *totals, *rows), outputs, strict=False)
    stacked |= zip(factors, outputs[len(outputs) - len(factors) :], strict=True)
    of_input = dict(known) | {i: _sum_of_products(g, op, stacked) for i, op in products.items()}
    return [of_input.get(i) for i in range(len(types))]


def _product(work: BodyGradient, value: Value, stacked: Mapping[Value, Sym]) -> Op | None:
    """Return the matrix product of a weight's gradient, if it can be moved after the loop.

    The sum of the products of all positions is one product of matrices with a row for each row of
    each position.  It takes less time than to add the products to a sum at each position, if that
    is larger than the factors that the loop then stacks, which are those that are no sequences.
    """
    op = work.op(value)
    if op.type != "matmul":
        return None
    others = [x for x in op.inputs if x not in stacked]
    sizes = [num_elements(work.type_of(x).shape) for x in others]
    is_small = sum(sizes) <= num_elements(work.type_of(value).shape)
    return op if is_small and not set(work.inputs).intersection(others) else None


def _sum_of_products(g: GradContext, op: Op, stacked: Mapping[Value, Sym]) -> Sym:
    """Emit the sum over all positions of matrix products, as a product.

    Its rows are in the order of the sequences, or, for several devices, which may have parts of the
    rows of each position, with the positions as the inner axis.
    """
    rows, is_outer = [], g.op.placement.size == 1
    for x, is_first in zip(op.inputs, (True, False), strict=True):
        flag = op.attrs["transpose_a" if is_first else "transpose_b"]
        inner = 1 if flag == is_first else 2  # the axis of which the product is a sum
        perm = (0, inner, 3 - inner) if is_outer else (inner, 0, 3 - inner)
        moved = stacked[x] if perm == (0, 1, 2) else g.one("transpose", stacked[x], perm=perm)
        rows.append(g.one("reshape", moved, shape=(-1, moved.shape[2])))
    return g.one("matmul", *rows, **{**op.attrs, "transpose_a": True, "transpose_b": False})


def _states(g: GradContext) -> Sequence[int]:
    """Return the numbers of the outputs that are the carries before each position."""
    results = g.attrs["body"][1]
    found = [
        next((k for k, r in enumerate(results) if k >= count and r == (-1, i)), None)
        for count in [g.attrs["carries"]] for i in range(count)
    ]  # fmt: skip
    if None in found:
        raise GraphError(
            f"gradient of {g.op.name!r}",
            found="a loop that does not return its carries",
            allowed="loops of train jobs",
        )
    return [k for k in found if k is not None]


OPS = specs(Scan, RandomScan)
