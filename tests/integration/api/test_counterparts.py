"""The table of numpy's and torch's functions: what it names exists, and gives what numpy gives."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snapshots

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))

from reference_pages.counterparts import sections

RNG = np.random.default_rng(0)
SHAPES = {
    "x": (3, 4), "y": (3, 4), "v": (4,), "m": (4, 4), "t": (2, 3, 4), "images": (2, 4, 5, 6),
}  # fmt: skip
ARRAYS: dict[str, Any] = {
    **{name: RNG.uniform(0.1, 0.9, shape).astype("f4") for name, shape in SHAPES.items()},
    "n": np.int32([[0, 2, 1, 3], [2, 2, 0, 1], [3, 3, 2, 0]]),
    "k": np.int32([2, 0, 1]),
}
OTHERWISE = {
    "np.unique(k)": "a blob of fixed size, with counts",
    "np.random.default_rng(0).random((2, 3))": "random",
    "np.random.default_rng(0).normal(size=(2, 3))": "random",
    "np.random.default_rng(0).integers(0, 5, (2, 3))": "random",
    "np.random.default_rng(0).permutation(x)": "random",
}
"""Rows whose results are not numpy's, and why."""


SEVERAL = ("array_split", "split", "unstack")
"""Functions with several results; the last ones are compared."""


def test_the_table_is_complete() -> None:
    rows = [row for part in sections().values() for row in part]
    assert len(rows) > 150
    assert all(row.flow and (row.numpy or row.torch) for row in rows)
    assert set(OTHERWISE) <= {row.numpy for row in rows}


def test_the_page_has_the_table() -> None:
    snapshots.check("docs/howto/functions.md")


def test_every_name_exists() -> None:
    text = " ".join(row.flow for part in sections().values() for row in part)
    for name in sorted(set(re.findall(r"flow\.[\w.]+", text))):
        found: Any = flow
        for part in name.split(".")[1:]:
            found = getattr(found, part)


def last(result: Any) -> Any:
    """The result, or the last one of several."""
    return result[-1] if isinstance(result, list | tuple) else result


@pytest.mark.parametrize("title", sections())
def test_both_sides_are_equal(title: str) -> None:
    rows = [row for row in sections()[title] if not row.flow.endswith(("(...)", ".shape"))]

    def job(given: Any) -> Any:
        names = {"flow": flow, "math": math, **dict(zip(ARRAYS, given, strict=True))}
        return tuple(last(eval(row.flow, names)) for row in rows)

    places = [tp.Numpy.Placeholder(x.shape, as_dtype(x.dtype)) for x in ARRAYS.values()]
    job.__annotations__ = {"given": tuple[*places], "return": tuple[*[tp.Numpy] * len(rows)]}
    results = flow.global_function()(job)(tuple(ARRAYS.values()))
    names = {"np": np, **ARRAYS}
    for row, found in zip(rows, results, strict=True):
        function = row.numpy.partition("(")[0].removeprefix("np.")
        known = not row.numpy.startswith("np.") or hasattr(np, function.partition(".")[0])
        if row.numpy and known and row.numpy not in OTHERWISE:
            result = eval(row.numpy, names)
            wanted = np.atleast_1d(last(result) if function in SEVERAL else result)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=row.flow)
            assert found.shape == wanted.shape, row.flow
