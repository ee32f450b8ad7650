"""Report progress by part of the product; a plugin that the root conftest loads.

With ``--parts`` a line appears when all tests of a part have run, in place of a character per test,
and a table of all parts at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

OPTION = "--parts"
PARTS = {
    "pages and programs": ("tests/test_docs", "tests/integration/api",
                           "tests/integration/notebooks"),
    "several processes": ("packages/flow-dist", "packages/flow-serve",
                          "tests/integration/multiprocess"),
    "commands and plugins": ("tests/plugins", "packages/flow-core/tests/cli",
                             "packages/flow-core/tests/plugins"),
    "ops and numpy kernels": ("packages/flow-core/tests/ops", "packages/flow-core/tests/builtin",
                              "packages/flow-rules"),
    "oneDNN": ("packages/flow-onednn", "tests/integration/processors"),
    "CUDA, simulated": ("packages/flow-cuda",),
    "ONNX": ("packages/flow-onnx",),
    "data and files": ("packages/flow-data", "packages/flow-core/tests/checkpoint", "tests/fuzz",
                       "tests/integration/checkpoints", "tests/integration/data"),
    "training and plans": ("tests/integration", "packages/flow-fit", "packages/flow-zoo"),
    "examples of docstrings": tuple(f"packages/flow-{name}/src" for name in (
        "core", "cuda", "data", "dist", "fit", "onednn", "onnx", "rules", "serve", "typing",
        "zoo")),
    "compiler and runtime": ("packages",),
    "the project": ("tests",),
}  # fmt: skip
"""Parts by the beginning of the path of their tests; a test belongs to the first that matches."""


def part_of(nodeid: str) -> str:
    """Return the part of a test."""
    for part, prefixes in PARTS.items():
        if part != "examples of docstrings" and "/src/" in nodeid:
            continue
        if nodeid.startswith(prefixes):
            return part
    return "the project"


@dataclass
class Part:
    """The state of a part.

    Attributes:
        expected, ended: numbers of cases.
        outcomes: numbers of cases by outcome.
        functions: the tests that the cases belong to.
        seconds: of all cases, which run in several processes at once.
    """

    expected: int = 0
    ended: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def __str__(self) -> str:
        order = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
        counts = ", ".join(f"{self.outcomes[o]:,} {o}" for o in order if self.outcomes[o])
        return f"{len(self.functions):,} tests: {counts}; {self.seconds:.0f} s in all processes"


class Parts:
    """The hooks of the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started = time.monotonic()
        self._parts = {name: Part() for name in PARTS}
        self._collected = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the cases, where this process collects them."""
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Count the cases, once, where the processes of pytest-xdist collect them."""
        self._expect(ids)

    def _expect(self, ids: Iterable[str]) -> None:
        if not self._collected:
            for nodeid in ids:
                self._parts[part_of(nodeid)].expected += 1
                self._collected = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """Print no character for a test that passes, is skipped, or fails as expected."""
        if report.skipped:
            return ("xfailed" if hasattr(report, "wasxfail") else "skipped", "", "")
        return ("passed", "", "") if report.when == "call" and report.passed else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its part; report the part after its last test."""
        part = self._parts[part_of(report.nodeid)]
        part.seconds += report.duration
        outcome, _, _ = self._config.hook.pytest_report_teststatus(
            report=report, config=self._config
        )
        part.outcomes[outcome] += bool(outcome)
        if report.when == "teardown":
            part.ended += 1
            part.functions.add(report.nodeid.partition("[")[0])
            if part.ended == part.expected:
                self._print(part_of(report.nodeid), part)

    def _print(self, name: str, part: Part) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        reporter.ensure_newline()
        reporter.write_line(f"{minutes}:{seconds:02}  {name}: {part}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(OPTION, action="store_true", help="report progress by part of the product")


def pytest_configure(config: pytest.Config) -> None:
    """Report in the process that starts the others."""
    if config.getoption(OPTION) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Parts(config))
