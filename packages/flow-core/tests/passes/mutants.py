"""Replace one pass of flow_core at a time by the identity; its test module must then fail.

Run by ``nox -s mutants``.  Only tests that use the fixture `apply` count: a pass without such tests
in the module of its name is an error.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import processes
import pytest
from conftest import MUTANT

import flow_core.passes

FOLDER = Path(__file__).parent
OUTCOMES = {pytest.ExitCode.OK: "SURVIVED", pytest.ExitCode.TESTS_FAILED: "killed"}
"""What the status of a run with a mutant means; any other is that of a run without tests."""


def passes() -> Iterator[tuple[str, str]]:
    """Yield the module and class of every pass of flow_core: a dataclass with a name."""
    for info in pkgutil.walk_packages(flow_core.passes.__path__, "flow_core.passes."):
        module = import_module(info.name)
        for name, found in vars(module).items():
            own = isinstance(found, type) and found.__module__ == info.name
            named = own and is_dataclass(found) and any(f.name == "name" for f in fields(found))
            if named and hasattr(found, "apply"):
                yield info.name, name


def tests_of(module: str) -> Path:
    """Return the test module of a pass."""
    *folders, name = module.split(".")[2:]
    return FOLDER.joinpath(*folders, f"test_{name}.py")


def run(mutant: str, *tests: Path) -> processes.Completed[str]:
    """Run the tests that use the fixture, with one pass or, with an empty text, none disabled."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return processes.run([*command, *map(str, tests)], env={**os.environ, MUTANT: mutant})


def main() -> int:
    """Print a line per pass; the exit status is 1 unless all tests pass and each mutant is killed."""
    started, listed = time.monotonic(), list(passes())
    modules = dict.fromkeys(tests_of(module) for module, _ in listed)
    plain = run("", *filter(Path.exists, modules))
    if plain.returncode:
        print(f"the tests do not pass without mutants:\n{plain.stdout}{plain.stderr}")
        return 1
    killed = 0
    for module, name in listed:
        done = run(f"{module}:{name}", tests_of(module))
        outcome = OUTCOMES.get(done.returncode, "UNTESTED")
        killed += outcome == "killed"
        print(f"{outcome:8} {module}:{name}", flush=True)
        if outcome == "UNTESTED":
            print(f"  no test in {tests_of(module)} uses `apply`:\n{done.stdout}{done.stderr}")
    seconds = time.monotonic() - started
    print(f"{killed} of {len(listed)} mutants killed in {seconds:.0f} s")
    return int(killed < len(listed))


if __name__ == "__main__":
    sys.exit(main())
