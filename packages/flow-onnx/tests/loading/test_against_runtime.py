"""Each operator in all of its opsets and element types, compared with ONNX Runtime.

A node gives ONNX Runtime's numbers, or is refused.  Differences and refusals are rows of tables.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_cases.backend import stored
from onnx_cases.case import Case, model_of, versions
from onnx_cases.models import loaded_results, run_model
from onnx_cases.nodes import all_cases

from flow_core.base.errors import FlowError
from flow_onnx.importers import IMPORTERS, control, random

PAGE = Path(__file__).parents[4] / "docs" / "onnx.md"
NEWEST = 23
"""The newest opset of the emitters."""

CASES = all_cases()


@dataclass(frozen=True)
class Row:
    """Cases of an operator that do not give the numbers of ONNX Runtime 1.32.

    Attributes:
        op: the operator.
        cases: a pattern of their texts.
        why: the reason.
        opsets: the first and the last opset.
    """

    op: str
    cases: str
    why: str
    opsets: tuple[int, int] = (1, 99)

    def matches(self, case: Case, opset: int) -> bool:
        in_range = self.opsets[0] <= opset <= self.opsets[1]
        return in_range and self.op == case.op and bool(re.search(self.cases, str(case)))


DIFFERENT = (
    Row("Clip", r", -[,)]|=-?inf",
        "Runtime's limit is the largest finite number where there is none, also for infinities"),
    Row("GlobalMaxPool", r"\[1, 2, 9\]", "Runtime's maximum ignores NaN"),
    Row("LogSoftmax", r"float64\[4, 3\]", "Runtime subtracts inf from finite numbers in float64"),
    Row("MaxPool", r"\[1, 2, 9\]", "Runtime's maximum ignores NaN"),
    Row("Sign", "float16", "Runtime's sign of NaN is 0 in float16"),
)  # fmt: skip

REFUSED = (
    Row("ArgMax", "select_last_index", "select_last_index=1"),
    Row("ArgMin", "select_last_index", "select_last_index=1"),
    Row("AveragePool", "dilations", "dilations"),
    Row("AveragePool", "ceil_mode': 1.*count_|count_.*ceil_mode': 1",
        "ceil_mode=1 with count_include_pad=1"),
    Row("ConvTranspose", "SAME|output_shape", "padding that follows from the size"),
    Row("Dropout", "True", "training mode"),
    Row("GatherND", "batch_dims': 1", "batch_dims=1"),
    *(Row(op, text, reason)
      for op in ("GRU", "LSTM")
      for text, reason in (
          ("Relu", "activations="), ("'clip'", "clip="), (r"input 4=\[3, 1]", "sequence_lens="),
      )),
    Row("GRU", "linear_before_reset': 0", "linear_before_reset=0"),
    Row("LSTM", "input_forget': 1", "input_forget=1"),
    Row("LSTM", "input 7", "input P"),
    Row("MaxPool", "dilations", "dilations"),
    Row("MaxPool", r"\[1, 2, 6\]", "the result 'y1'"),
    Row("ReduceLogSumExp", "int", "integers"),
    Row("Resize", r"cubic|\{\}|1\.5|\[1.0, 2.0|input 3", "images are enlarged by whole factors"),
    Row("ScatterElements", r"\{\}", "a reduction other than add"),
    Row("Squeeze", "=.-1", "a result of shape", (1, 10)),
    Row("Unsqueeze", "=.-1", "a result of shape", (1, 10)),
)  # fmt: skip
"""Nodes without a counterpart, with the text of the error as the reason."""

COMPUTED = (
    Row(
        "Clip",
        r"=2(\.0)? input 2=1|=inf",
        "the result is the upper limit, as since opset 11",
        (1, 10),
    ),
    *(
        Row(op, "layout|float64", "Runtime has float32 and the layout 0 alone")
        for op in ("GRU", "LSTM")
    ),
    Row("ScatterElements", "float16", "Runtime does not add float16"),
    Row("ScatterND", "float16", "Runtime does not add float16"),
    Row("Squeeze", r", -\) ", "Runtime needs axes, which ONNX does not", (13, 99)),
)
"""Nodes that ONNX Runtime refuses although it has the operator."""


def rows(table: tuple[Row, ...], case: Case, opset: int) -> list[str]:
    return [row.why for row in table if row.matches(case, opset)]


def names() -> Iterator[tuple[str, int, str]]:
    for op in sorted(CASES):
        for opset in versions(op, NEWEST):
            if any(case.opsets[0] <= opset <= case.opsets[1] for case in CASES[op]):
                yield from ((op, opset, mode) for mode in ("fed", "known"))


def runtime(path: Path, case: Case, known: bool) -> tuple[list[Any] | None, str]:
    """Return ONNX Runtime's results, or None and its reason."""
    try:
        return run_model(path, {} if known else case.feeds), ""
    except Exception as error:
        return None, str(error)


def close(found: list[Any], expected: list[Any]) -> bool:
    """Return whether shapes and element types are equal, and numbers up to rounding."""
    pairs = list(zip(found, map(stored, expected), strict=True))
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.allclose(a, b, *((4e-3, 4e-3) if b.dtype == np.float16 else (1e-4, 1e-5)), True)
        if b.dtype.kind == "f"
        else a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in pairs
    )


KINDS = ("equal", "refused by both", "refused by flow", "refused by Runtime", "different")


def outcome(case: Case, opset: int, known: bool, path: Path) -> tuple[str, str]:
    """Return which of `KINDS` a node is, or "wrong" and how it fails."""
    path.write_bytes(model_of(case, opset, known).SerializeToString())
    expected, reason = runtime(path, case, known)
    try:
        feeds = [] if known else [stored(x) for x in case.feeds.values()]
        found = loaded_results(path, feeds)
    except FlowError as error:
        if expected is None:
            return "refused by both", ""
        listed = any(text in str(error) for text in rows(REFUSED, case, opset))
        return ("refused by flow", "") if listed else ("wrong", f"refused: {error}")
    if expected is None:
        unknown = "NOT_IMPLEMENTED" in reason or rows(COMPUTED, case, opset)
        text = f"computed {found}, which Runtime refuses: {reason:.300}"
        return ("refused by Runtime", "") if unknown else ("wrong", text)
    if close(found, expected):
        return "equal", ""
    text = f"computed {found}, Runtime {expected}"
    return ("different", "") if rows(DIFFERENT, case, opset) else ("wrong", text)


def outcomes(op: str, opset: int, mode: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Return the outcomes of the cases of an operator in an opset, by their texts."""
    onnxruntime.set_default_logger_severity(4)
    cases = [case for case in CASES[op] if case.opsets[0] <= opset <= case.opsets[1]]
    return {str(c): outcome(c, opset, mode == "known", folder / "m.onnx") for c in cases}


@pytest.mark.representative(
    rf"-{NEWEST}-fed]|(Cast|Gather|ReduceLogSumExp|Slice|Softmax|Where)-{NEWEST}-known]",
    "the newest opset, and some operators on constants",
)
@pytest.mark.parametrize(
    ("op", "opset", "mode"), [pytest.param(*name, id="-".join(map(str, name))) for name in names()]
)
def test_an_operator_gives_the_numbers_of_onnx_runtime(
    op: str, opset: int, mode: str, tmp_path: Path
) -> None:
    found = outcomes(op, opset, mode, tmp_path)
    failed = [f"{case}: {text}" for case, (kind, text) in found.items() if kind == "wrong"]
    assert not failed, "\n".join(failed)
    kinds = {kind for kind, _ in found.values()}
    assert kinds & {"equal", "different"}, "no case is computed by both"


@pytest.mark.exhaustive
def test_the_page_has_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print how many nodes have each outcome; docs/onnx.md has the same sentence."""
    found = Counter(kind for name in names() for kind, _ in outcomes(*name, tmp_path).values())
    types = {
        x.dtype for cases in CASES.values() for case in cases for x in case.inputs if x is not None
    }
    equal, both, flow, runtime, different = (found[kind] for kind in KINDS)
    text = (
        f"Of {found.total():,} nodes of {len(CASES)} operators and {len(types)} element types in "
        f"opsets 7 to {NEWEST}, {equal:,} give equal numbers; both refuse {both:,}, flow alone "
        f"{flow:,}, for the reasons above; ONNX Runtime has no kernel for {runtime:,}, or refuses "
        f"them; {different:,} differ as below; wrong: {found['wrong']}"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")
    assert text in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_each_operator_has_cases() -> None:
    others = {*control.IMPORTERS, *random.IMPORTERS}  # see test_control.py and test_random.py
    assert set(CASES) == set(IMPORTERS) - others


@cache
def uses() -> dict[Row, int]:
    table = dict.fromkeys((*DIFFERENT, *REFUSED, *COMPUTED), 0)
    for row in table:
        opsets = versions(row.op, NEWEST)
        table[row] = sum(row.matches(case, n) for case in CASES[row.op] for n in opsets)
    return table


def test_each_row_names_cases() -> None:
    assert not [row for row, count in uses().items() if not count]
