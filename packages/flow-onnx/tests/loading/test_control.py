"""Branches and loops of models give the results of ONNX Runtime, with ops that have bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, JobError, UnsupportedError

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3)).astype(np.float32)
XS = {axis: RNG.normal(size=np.insert([2, 3], axis, 5)).astype(np.float32) for axis in range(3)}

IF = """
    y = If (on) <
        then_branch = one () => (float[2, 3] t) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
            { t = MatMul (x, w) },
        else_branch = other () => (float[2, 3] e) <float[3, 3] w = {9, 8, 7, 6, 5, 4, 3, 2, 1}>
            { p = MatMul (x, w)  e = Neg (p) }
    >
"""
FOLDED = """
    yes = Constant <value = bool {1}> ()
    y = If (yes) <
        then_branch = one () => (float[2, 3] t) { t = Add (x, x) },
        else_branch = other () => (float[2, 3] e) { e = Neg (x) }
    >
"""
SCAN = """
    y, rows = Scan <
        num_scan_inputs = 1, scan_input_axes = [%d], scan_input_directions = [%d],
        scan_output_axes = [%d], scan_output_directions = [%d],
        body = b (float[2, 3] s, float[2, 3] e) => (float[2, 3] n, float[2, 3] o)
            { a = Add (s, e)  n = Tanh (a)  o = Sub (n, x) }
    > (x, xs)
"""
LOOP = """
    count = Constant <value = int64 {%d}> ()
    y, rows = Loop <
        body = b (int64 i, bool c, float[2, 3] s) => (bool d, float[2, 3] n, float[2, 3] o) {
            f = Cast <to = 1> (i)  o = Add (s, f)  n = Mul (o, x)  d = %s
        }
    > (count, , x)
"""
ENDING = """
    count = Constant <value = int64 {%d}> ()  flag = Squeeze (on)
    y = Loop <
        body = b (int64 i, bool c, float[2, 3] s) => (bool d, float[2, 3] n) {
            n = Add (s, s)  top = ReduceMax <keepdims = 0> (n)
            limit = Constant <value = float {40}> ()  d = Less (top, limit)
        }
    > (count, %s, x)
"""
NESTED = """
    y, rows = Scan <
        num_scan_inputs = 1,
        body = b (float[2, 3] s, float[2, 3] e) => (float[2, 3] n, float[2, 3] o) {
            top = ReduceSum <keepdims = 0> (e)  zero = Constant <value = float {0}> ()
            d = Greater (top, zero)
            n = If (d) <
                then_branch = t () => (float[2, 3] p) { p = Add (s, e) },
                else_branch = u () => (float[2, 3] q) { q = Mul (s, x) }
            >
            o = Abs (n)
        }
    > (x, xs)
"""


def saved(path: Path, body: str, has_rows: bool) -> Path:
    """Save a model of the inputs on, x and xs, which all of its parts may read."""
    rows = ", float[a, b, c] rows" if has_rows else ""
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    inputs = "bool[1] on, float[2, 3] x, float[l, m, n] xs"
    text = f"{head} g ({inputs}) => (float[2, 3] y{rows}) {{ {body} }}"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def compare(path: Path, on: bool = True, xs: Any = XS[0]) -> list[str]:
    """Compare a model with ONNX Runtime; return the types of the ops in the job."""
    names = {i.name for i in onnx.load(path).graph.input}
    feeds = {"on": np.array([on]), "x": X, "xs": xs}
    session = onnxruntime.InferenceSession(path)
    wanted = session.run(None, {name: x for name, x in feeds.items() if name in names})

    @flow.global_function()
    def job(
        on: tp.Numpy.Placeholder((1,), dtype=flow.int8),
        x: tp.Numpy.Placeholder(X.shape),
        xs: tp.Numpy.Placeholder(xs.shape),
    ) -> list[tp.Numpy]:
        found = flow.onnx.load(path, on, x, xs)
        return list(found) if isinstance(found, tuple) else [found]

    for mine, other in zip(job(feeds["on"].astype(np.int8), X, xs), wanted, strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, 1e-5, 1e-6)
    return [task.type for task in job.plan().tasks]


@pytest.mark.parametrize("on", [True, False])
def test_one_branch_runs(tmp_path: Path, on: bool) -> None:
    assert "cond" in compare(saved(tmp_path / "m.onnx", IF, False), on)
    assert len(flow.get_all_variables()) == 2  # both are called w


def test_a_known_branch_alone_is_loaded(tmp_path: Path) -> None:
    assert "cond" not in compare(saved(tmp_path / "m.onnx", FOLDED, False))


@pytest.mark.parametrize(
    "places", [(0, 0, 0, 0), (1, 1, 2, 1), (2, 0, -1, 1), (-2, 1, -3, 0)], ids=str
)
def test_scans(tmp_path: Path, places: tuple[int, ...]) -> None:
    assert "scan" in compare(saved(tmp_path / "m.onnx", SCAN % places, True), xs=XS[places[0] % 3])


@pytest.mark.parametrize("count", [0, 1, 6])
@pytest.mark.parametrize("on", ["Identity (c)", "Constant <value = bool {1}> ()"])
def test_counted_loops(tmp_path: Path, count: int, on: str) -> None:
    assert "scan" in compare(saved(tmp_path / "m.onnx", LOOP % (count, on), True))


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("count", [3, 50])
def test_loops_that_end_early(tmp_path: Path, count: int, on: bool) -> None:
    assert "scan" in compare(saved(tmp_path / "m.onnx", ENDING % (count, "flag"), False), on)


def test_a_branch_within_a_loop(tmp_path: Path) -> None:
    assert "scan" in compare(saved(tmp_path / "m.onnx", NESTED, True))


REFUSED: dict[str, tuple[str, bool, type[FlowError], str]] = {
    "rows of a loop that ends early": (
        LOOP.replace("d = %s", "t = ReduceMax <keepdims = 0> (n)  d = Less (t, t)") % 3,
        True,
        UnsupportedError,
        "may end before its last position",
    ),
    "ended at once": (
        LOOP % (3, "Constant <value = bool {0}> ()"),
        True,
        UnsupportedError,
        "at the first position",
    ),
    "many positions": (ENDING % (2**40, "flag"), False, UnsupportedError, "1,099,511,627,776"),
    "a count of the inputs": (
        "size = Cast <to = 7> (on)" + ENDING.replace("(count", "(size") % (3, "flag"),
        False,
        UnsupportedError,
        "the number of positions",
    ),
    "no count": (
        ENDING.replace("(count, %s", "( , %s") % (3, "flag"),
        False,
        UnsupportedError,
        "any number of positions",
    ),
    "other shapes": (
        IF.replace("e = Neg (p)", "e = ReduceSum (p)"), False, JobError, "of the same form",
    ),
    "an unknown operator in a body": (
        IF.replace("Neg (p)", "Det (p)"), False, UnsupportedError, "Det",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused(tmp_path: Path, name: str) -> None:
    body, has_rows, kind, text = REFUSED[name]
    path = saved(tmp_path / "m.onnx", body, has_rows)
    with pytest.raises(kind) as error:
        compare_without_runtime(path)
    assert text in str(error.value)


def compare_without_runtime(path: Path) -> None:
    @flow.global_function()
    def job(
        on: tp.Numpy.Placeholder((1,), dtype=flow.int8),
        x: tp.Numpy.Placeholder(X.shape),
        xs: tp.Numpy.Placeholder(XS[0].shape),
    ) -> list[tp.Numpy]:
        found = flow.onnx.load(path, on, x, xs)
        return list(found) if isinstance(found, tuple) else [found]

    job(np.ones(1, np.int8), X, XS[0])
