"""Defects to plant in kernels, each of which a sanitizer must find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .runs import case_of, errors, samples

_RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    """Return random float32 numbers."""
    return _RNG.normal(size=shape).astype(np.float32)


def indices(limit: int, *shape: int) -> Any:
    """Return random int64 numbers below a limit."""
    return _RNG.integers(0, limit, shape)


@dataclass(frozen=True)
class Defect:
    """A defect.

    Attributes:
        name: what is wrong.
        tool: the tool that finds it.
        op, arrays, attrs: the op, its inputs, and its attributes; without inputs, its largest
            sample.
        old, new: the text to replace in the source of the kernel, and its replacement.
        nth: the number of the place to replace, if there are several.
    """

    name: str
    tool: str
    op: str
    arrays: tuple[Any, ...]
    old: str
    new: str
    nth: int = 0
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def plant(self, text: str) -> str:
        """Return the source with the defect."""
        parts = text.split(self.old)
        assert len(parts) > self.nth + 1, f"{self.name}: the source has no such text"
        head, tail = parts[: self.nth + 1], parts[self.nth + 1 :]
        return self.old.join(head) + self.new + self.old.join(tail)


def missed(defect: Defect) -> bool:
    """Return whether no error is reported for a kernel with the defect."""
    if defect.arrays:
        case = case_of(defect.op, defect.arrays, defect.attrs)
    else:
        case = max(samples(defect.op, "float32"), key=lambda one: sum(x.size for x in one.arrays))
    return not list(errors([case], defect.tool, defect.plant))


ROWS, MATRIX = (floats(9, 300),), (floats(2, 40, 50),)
WIDE = (floats(9, 1300),)
NORM = (floats(9, 1300), floats(1300), floats(1300)), {"begin_norm_axis": 1, "begin_params_axis": 1}
LOSS = (floats(9, 1300), indices(1300, 9)), {"depth": 1300}
"""Rows of more elements than the threads of a warp keep."""
TURNED = {"perm": (0, 2, 1)}
TALL = (floats(600, 40),)
LEADING = {"axis": (0,), "keepdims": False}
TRAILING = {"axis": (1,), "keepdims": False}
TABLE = (floats(7, 5), indices(7, 400))
INDEXED = (floats(50, 4), indices(50, 3000), floats(3000, 4), np.array(0.1, np.float32))
"""A table, and updates of its rows, whose indices are sorted."""
SORTS = "indexed_slices_sgd_update"
COLUMNS = "        __syncthreads();\n        kept[threadIdx.x] = sum;\n        __syncthreads();\n"
SCAN = "        V other = own >= step ? sums[own - step] : (V)0;\n        __syncthreads();\n"
KEEP = "    if (threadIdx.x % WARP == 0) kept[threadIdx.x / WARP] = value;\n"
BLOCK = KEEP + "    __syncthreads();\n"


def _barriers() -> tuple[Defect, ...]:
    """Return missing barriers."""
    first = "    __syncthreads();\n" + BLOCK
    tile = "tile[i / TILE][i % TILE] = x[matrix + r * columns + c];\n        }\n"
    place = "missing barrier: "
    return (
        Defect(place + "before a reduction", "thread", "layer_norm", NORM[0], first, BLOCK,
               attrs=NORM[1]),
        Defect(place + "after the values of a reduction", "thread", "softmax", WIDE, BLOCK,
               KEEP),
        Defect(place + "in a layer norm", "thread", "layer_norm", NORM[0], BLOCK,
               KEEP, attrs=NORM[1]),
        Defect(place + "in a loss", "thread", "sparse_softmax_cross_entropy", LOSS[0], BLOCK,
               KEEP, attrs=LOSS[1]),
        Defect(place + "in a row sum", "thread", "reduce_sum", ROWS, BLOCK,
               KEEP, attrs=TRAILING),
        Defect(place + "between a tile's writes and reads", "thread", "transpose", MATRIX,
               tile + "        __syncthreads();\n", tile, attrs=TURNED),
        Defect(place + "before column sums", "thread", "reduce_sum", TALL, COLUMNS,
               COLUMNS.replace("        __syncthreads();\n", "", 1), attrs=LEADING),
        Defect(place + "after column sums", "thread", "reduce_sum", TALL, COLUMNS,
               COLUMNS.replace("sum;\n        __syncthreads();\n", "sum;\n"), attrs=LEADING),
        Defect(place + "in a scan, after the reads", "thread", SORTS, INDEXED, SCAN,
               SCAN.replace("        __syncthreads();\n", "")),
        Defect(place + "in a scan, after the writes", "thread", SORTS, INDEXED,
               "sums[own] += other;\n        __syncthreads();\n", "sums[own] += other;\n"),
        Defect(place + "before a scan", "thread", SORTS, INDEXED,
               "    sums[own] = value;\n    __syncthreads();\n", "    sums[own] = value;\n"),
        Defect(place + "before a histogram", "thread", SORTS, INDEXED,
               "found[d] = 0;\n        __syncthreads();\n", "found[d] = 0;\n"),
        Defect(place + "after a histogram", "thread", SORTS, INDEXED,
               "1u);\n        }\n        __syncthreads();\n", "1u);\n        }\n"),
        Defect(place + "not reached by some threads", "thread", "softmax", WIDE, BLOCK,
               KEEP + "    if (threadIdx.x < 100) __syncthreads();\n"),
    )  # fmt: skip


def _tails() -> tuple[Defect, ...]:
    """Return loops and masks that are off by one."""
    each = (
        ("broadcast_add", (floats(700), floats(700)), {}), ("gather", TABLE, {"axis": 0}),
        ("cast", (floats(700),), {"dtype": "float16"}), ("relu", (floats(33),), {}),
        ("sparse_softmax_cross_entropy_grad", (), {}),
        ("unsorted_segment_sum", (floats(400, 3), indices(7, 400)), {"axis": 0, "num_segments": 7}),
    )  # fmt: skip
    return (
        *(Defect(f"tail of {op}", "address", op, arrays, "LOOP(i, first_item(), count,",
                 "LOOP(i, first_item(), count + 1,",
                 attrs=attrs)
          for op, arrays, attrs in each),
        *(Defect(f"row tail of {op}", "address", op, arrays, "LOOP(i, threadIdx.x * W, row.n,",
                 "LOOP(i, threadIdx.x * W, row.n + W,", attrs=attrs)
          for op, arrays, attrs in (
              ("softmax", WIDE, {}), ("log_softmax", WIDE, {}), ("layer_norm", *NORM))),
        *(Defect(f"tail of a warp in {op}", "address", op, ROWS,
                 "return (k + 1) * (i64)(LANES * W) <= n ||", "return true ||")
          for op in ("softmax", "log_softmax")),
        Defect("one row too many", "address", "softmax", (floats(8, 30),),
               "LOOP(r, FIRST_ROW(N), rows,", "LOOP(r, FIRST_ROW(N), rows + 1,"),
        Defect("mask of a tile's reads", "address", "transpose", MATRIX,
               "if (r < rows && c < columns) tile", "if (r < rows + 1 && c < columns) tile",
               attrs=TURNED),
        Defect("mask of a tile's writes", "address", "transpose", MATRIX,
               "if (r < rows && c < columns) y", "if (r < rows && c <= columns) y", attrs=TURNED),
        Defect("mask of columns", "address", "reduce_sum", TALL, "if (column < columns) {",
               "if (column < columns + 8) {", attrs=LEADING),
        Defect("index range", "address", "gather", (floats(7, 5), indices(9, 400)),
               "row >= rows ? (U)0", "row > rows + 1 ? (U)0", attrs={"axis": 0}),
    )  # fmt: skip


def _races() -> tuple[Defect, ...]:
    """Return races between blocks and between threads."""
    segments = (floats(400, 3), indices(7, 400))
    sums = {"axis": 0, "num_segments": 7}
    return (
        Defect("all blocks do the same", "thread", "broadcast_add", (floats(700), floats(700)),
               "return (i64)blockIdx.x * BLOCK + threadIdx.x", "return threadIdx.x"),
        Defect("all blocks reduce the same rows", "thread", "softmax", ROWS,
               "LOOP(r, FIRST_ROW(N), rows,", "LOOP(r, 0, rows,"),
        Defect("sums without atomic addition", "thread", "unsorted_segment_sum", segments,
               "FN void add_to(float *to, float value) { atomicAdd(to, value); }",
               "FN void add_to(float *to, float value) { *to += value; }", attrs=sums),
        Defect("a histogram without atomic addition", "thread", SORTS, INDEXED,
               "atomicAdd(&found[digit(keys[i], shift)], 1u)",
               "found[digit(keys[i], shift)] += 1u"),
        Defect("all threads store a result", "thread", "sparse_softmax_cross_entropy", (),
               "if (LEADS(N)) store(loss + r", "store(loss + r"),
        Defect("all threads store for their warp", "thread", "softmax", WIDE,
               "if (threadIdx.x % WARP == 0) kept[", "kept["),
        Defect("all blocks add to one total", "thread", "square_sum", (floats(50_000),),
               "if (blockIdx.x) return;", ""),
    )  # fmt: skip


def _arithmetic() -> tuple[Defect, ...]:
    """Return overflows, unaligned accesses and conversions out of range."""
    add = (floats(7000), floats(7000))
    return (
        Defect("32-bit index", "address", "broadcast_add", add,
               "return (i64)blockIdx.x * BLOCK + threadIdx.x",
               "return (int)blockIdx.x * (int)1000000007 + (int)threadIdx.x"),
        Defect("32-bit row", "address", "softmax", ROWS, "r / inner * n * inner",
               "(i64)((int)(r / inner) * 1000000007 * (int)n)", nth=1),
        Defect("an unaligned vector", "address", "gather", TABLE, "row >= rows ? (U)0 : ",
               "row >= rows ? (U)*(const u64 *)(x + 1) : (U)*(const u64 *)(x + 1) + ",
               attrs={"axis": 0}),
        Defect("a float beyond the integers", "address", "cast", (floats(70) * 1e20,),
               "? (i32)x : (i32)0x80000000u", "? (i32)x : (i32)x", attrs={"dtype": "int32"}),
        Defect("a shift by too much", "address", "cast", (floats(70),), "(bits >> 16 & 1)) >> 16",
               "(bits >> 16 & 1)) >> (16 + 16 * (bits | 1 ? 1 : 0))", attrs={"dtype": "bfloat16"}),
        Defect("a read before the array", "address", "broadcast_add", add, "return *from;",
               "return from[-1];"),
    )  # fmt: skip


DEFECTS = (*_barriers(), *_tails(), *_races(), *_arithmetic())
