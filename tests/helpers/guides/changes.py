"""The changes that a newcomer makes by following the guide, as texts to insert and mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CORE = "packages/flow-core/src/flow_core"
TESTS = "packages/flow-core/tests"


@dataclass(frozen=True)
class Change:
    """A change that follows some rows of the guide.

    Attributes:
        rows: the beginnings of the rows, which name the files that it may touch.
        inserted: for each file, the line before which a text is inserted, and the text; an empty
            line for a new file.
        tests: arguments of pytest; the tests must pass.
    """

    rows: tuple[str, ...]
    inserted: Mapping[str, tuple[str, str]]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake in one of the files of a row, which the tests of the next row must notice.

    Attributes:
        rows: the beginnings of the row of the files, and of the row of the tests.
        file: the file.
        right, wrong: a text of the file, and the mistake in its place.
    """

    rows: tuple[str, str]
    file: str
    right: str
    wrong: str


OP = Change(
    ("add an op,", "op: GPU kernel", "op: tests"),
    {
        f"{CORE}/ops/math/unary.py": (
            '    Unary("reciprocal",',
            '    Unary("cube", lambda x: x**3, lambda g: g.dy * g.x * g.x * 3, floating=False),\n',
        ),
        f"{CORE}/builtin/numpy_kernels/math/unary.py": (
            '    kernel("rsqrt", _rsqrt),',
            '    kernel("cube", _cube),\n',
        ),
        f"{CORE}/builtin/numpy_kernels/math/unary.py:function": (
            "def _rsqrt(",
            "def _cube(ctx: BindContext) -> Sequence[Launch]:\n"
            "    (x,), (y,) = ctx.inputs, ctx.outputs\n"
            "    square = np.empty_like(x)\n"
            "    return call(np.square, x, out=square), call(np.multiply, square, x, out=y)\n\n\n",
        ),
        f"{CORE}/api/math/unary.py": (
            "def square(",
            "def cube(x: Blob, name: str | None = None) -> BlobDef:\n"
            '    """Return the cube of each element.\n\n'
            "    Args:\n"
            "        x: a blob of floating-point numbers or integers.\n\n"
            "    >>> run(flow.math.cube, [-1.5, 2])\n"
            "    array([-3.375,  8.   ], dtype=float32)\n"
            '    """\n'
            '    return emit_one("cube", x, name=name)\n\n\n',
        ),
        f"{CORE}/api/math/unary.py:all": ('    "square",', '    "cube",\n'),
        "packages/flow-cuda/src/flow_cuda/codegen/expressions.py": (
            '    "square": _expression(',
            '    "cube": _expression("({0} * {0} * {0})"),\n',
        ),
        "tests/helpers/public_math.py": (
            '    "square": (X, np.square),',
            '    "cube": (X, lambda x: x**3),\n',
        ),
    },
    (
        f"{TESTS}/ops", f"{TESTS}/builtin", "packages/flow-cuda/tests/test_programs.py",
        "tests/integration/api/test_public_functions.py", f"{TESTS}/plugins/test_public_surface.py",
        "-k", "cube or without_a_kernel or surface or functions",
    ),
)  # fmt: skip

PASS = Change(
    ("add a pass", "pass: tests"),
    {
        f"{CORE}/passes/double_negatives.py": (
            "",
            '"""Removal of pairs of negations."""\n\n'
            "from __future__ import annotations\n\n"
            "from dataclasses import dataclass\n\n"
            "from flow_core.ir.graph import Graph\n"
            "from flow_core.passes.rewriting.rewriter import Rewriter\n"
            "from flow_core.passes.base import PassContext\n\n\n"
            "@dataclass(frozen=True)\n"
            "class DoubleNegatives:\n"
            '    """A pass that reads x in place of -(-x)."""\n\n'
            '    name: str = "double_negatives"\n\n'
            "    def apply(self, graph: Graph, context: PassContext) -> Graph:\n"
            '        """Return the graph without pairs of negations."""\n'
            "        rewriter = Rewriter(graph)\n"
            '        for op in graph.of_type("negative"):\n'
            "            inner = graph.ops[op.inputs[0].op]\n"
            '            if inner.type == "negative":\n'
            "                rewriter.replace_value(op.output(), inner.inputs[0])\n"
            "        return rewriter.finish()\n",
        ),
        f"{CORE}/builtin/passes_plugin.py": (
            '    PassSpec("constant_folding",',
            "    PassSpec(\n"
            '        "double_negatives",\n'
            '        "lower",\n'
            '        "flow_core.passes.double_negatives:DoubleNegatives",\n'
            '        before=("common_subexpressions",),\n'
            "    ),\n",
        ),
        f"{TESTS}/passes/test_double_negatives.py": (
            "",
            '"""Removal of pairs of negations."""\n\n'
            "from flow_core.passes.double_negatives import DoubleNegatives\n\n"
            'GRAPH = """\n'
            "graph\n"
            "x = input() : float32[2] @cpu[0:0] "
            "{'batch_axis': 0, 'dtype': 'float32', 'shape': (2,)}\n"
            "a = negative(x:0) : float32[2] @cpu[0:0] {}\n"
            "b = negative(a:0) : float32[2] @cpu[0:0] {}\n"
            "c = exp(b:0) : float32[2] @cpu[0:0] {}\n"
            "return c:0\n"
            "effects\n"
            '"""\n\n\n'
            "def test_a_pair_of_negations_is_not_read(apply):\n"
            '    assert "c = exp(x:0)" in apply(DoubleNegatives(), GRAPH)\n',
        ),
    },
    (f"{TESTS}/passes", f"{TESTS}/compiler/test_compile.py", "-k", "negat or compile"),
)

OPTIMIZER = Change(
    ("add an optimizer", "optimizer: tests"),
    {
        f"{CORE}/ir/update_rules.py": (
            "def _momentum(",
            "def _bounded(u: Step) -> None:\n"
            "    u.model = _kept(u, u.rate) - u.rate * (u.r / (sqrt(square(u.r)) + 1.0))\n\n\n",
        ),
        f"{CORE}/ir/update_rules.py:row": (
            '    Update("momentum_update",',
            '    Update("bounded_update", _bounded),\n',
        ),
        f"{TESTS}/ops/test_optim.py": (
            '    "momentum_update": momentum,',
            '    "bounded_update": bounded,\n',
        ),
        f"{TESTS}/ops/test_optim.py:formula": (
            "def momentum(",
            "def bounded(c: Case) -> tuple[Any, list[Any]]:\n"
            '    r, decay = regularized(c), c.attrs["weight_decay"]\n'
            "    return c.model - c.rate * (r / (np.abs(r) + 1) + decay * c.model), []\n\n\n",
        ),
    },
    (f"{TESTS}/ops/test_optim.py", f"{TESTS}/builtin", "-k", "bounded"),
)

PLANNER = ("change the memory planner", "memory planner: tests")
RESHARDING = ("fix a resharding bug", "resharding: tests")

CHANGES: Mapping[str, Change] = {"op": OP, "pass": PASS, "optimizer": OPTIMIZER}
MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        PLANNER,
        f"{CORE}/compiler/memory/live_ranges.py",
        "storage.last[value] = max(uses.get(value, i), i)",
        "storage.last[value] = i",
    ),
    Mistake(
        PLANNER,
        f"{CORE}/compiler/memory/arena.py",
        "    best = _first_come(blocks)\n",
        "    best = [0 for _ in blocks]\n",
    ),
    Mistake(
        PLANNER,
        f"{CORE}/compiler/memory/arena_assignment.py",
        "if limit is not None and needed > limit:",
        "if limit is not None and needed > 2 * limit:",
    ),
    Mistake(
        RESHARDING,
        f"{CORE}/compiler/reshard/direct.py",
        'return (found or {"sum"}).pop() if len(found) <= 1 else None',
        'return (found or {"sum"}).pop()',
    ),
    Mistake(
        RESHARDING,
        f"{CORE}/compiler/reshard/planner.py",
        "return step if seconds <= (into + max(1, rounds) * latency) * (1 + 1e-9) else None",
        "return step",
    ),
    Mistake(
        RESHARDING,
        f"{CORE}/compiler/distribute/collectives.py",
        "block_row(position[piece.source], held[position[piece.source]], piece, i, region)",
        "block_row(position[piece.source], held[0], piece, i, region)",
    ),
)
