"""The programs on the documentation's pages run and print the quoted output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import snapshots
from snapshots.pages import PATHS, agree, sharing

SLOW = ("docs/howto/published-networks.md",)
"""Pages whose programs take more than a few seconds."""


@pytest.fixture(scope="module", autouse=True)
def shared(interpreter: str) -> Iterator[None]:
    with sharing(interpreter):
        yield


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in PATHS]
)
def test_programs_print_what_the_page_says(path: str) -> None:
    snapshots.check(path)


def test_what_depends_on_the_processor_is_not_compared_and_the_rest_is() -> None:
    said = """
  tasks                 45        60        +15
  transfers             6         12        +6
  equal                 4
  op      type    error
  matmul  matmul  (B) -> B  inherited  8.3e-08  0.00         spread.py:10
"""
    other = said.replace("45 ", "1   ").replace("equal   ", "equal  ").replace("8.3e-08", "0.1")
    assert agree(said, other)
    assert agree(said, said[: said.index("  matmul")])
    assert not agree(said, said.replace("+6", "+7"))
    assert not agree(said, said.replace("inherited", "wrong"))
