"""The table of functions of numpy, jax.numpy and torch, and what they are here.

The rows are in ``counterparts.txt``; a test computes both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROWS = Path(__file__).with_name("counterparts.txt")
HEAD = """# Functions of NumPy, JAX and PyTorch

What the functions that programs use most are called here. `np` stands for `numpy` and
`jax.numpy`, `F` for `torch.nn.functional`. In the examples, `x` and `y` are floating-point blobs of
shape (3, 4), `v` of shape (4,), `m` of shape (4, 4) and `t` of shape (2, 3, 4); `n` and `k` are
integers of shapes (3, 4) and (3,), and `images` has the layout NCHW.

A result without axes has shape (1,) here, truth values are int8, and indices are int32. The
project's tests compute the right column, and compare it with the left one.
"""


class Row(NamedTuple):
    """Calls of numpy, torch and flow with one meaning; empty where there is none."""

    numpy: str
    torch: str
    flow: str


def sections() -> dict[str, list[Row]]:
    """Return the rows by the title of their section."""
    found: dict[str, list[Row]] = {}
    for line in ROWS.read_text().splitlines():
        if line.startswith("## "):
            rows = found[line.removeprefix("## ")] = []
        elif " | " in line and not line.startswith("#"):
            rows.append(Row(*("" if cell == "-" else cell for cell in line.split(" | "))))
    return found


def page() -> str:
    """Return the text of the page."""
    return "\n".join((HEAD, *_tables(), "Terms are defined in the [glossary](../glossary.md).\n"))


def _tables() -> Iterator[str]:
    for title, rows in sections().items():
        yield from (f"## {title}", "", "| NumPy, JAX | PyTorch | flow |", "|---|---|---|")
        for row in rows:
            yield f"| {' | '.join(f'`{cell}`' if cell else '' for cell in row)} |"
        yield ""
