"""Replace one pass of flow_core at a time by the identity; its test module must then fail.

Run by ``nox -s mutants``.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path

import processes
from conftest import MUTANT

import flow_core.passes

FAILED = 1
"""Exit status of pytest after failed tests."""


def passes() -> Iterator[tuple[str, str]]:
    """Yield the module and class of every pass of flow_core."""
    for info in pkgutil.iter_modules(flow_core.passes.__path__, "flow_core.passes."):
        module = import_module(info.name)
        for name, found in vars(module).items():
            own = isinstance(found, type) and found.__module__ == info.name
            if own and is_dataclass(found) and hasattr(found, "apply"):
                yield info.name, name


def survives(module: str, name: str) -> bool:
    """Return whether the test module of a pass still passes if the pass does nothing."""
    tests = Path(__file__).parent / f"test_{module.rpartition('.')[2]}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    env = {**os.environ, MUTANT: f"{module}:{name}"}
    return processes.run(command, env=env, timeout=1200).returncode != FAILED


def main() -> int:
    """Print a line per pass; the exit status is 1 if a mutant survives."""
    survivors = 0
    for module, name in passes():
        alive = survives(module, name)
        survivors += alive
        print(f"{'SURVIVED' if alive else 'killed  '} {module}:{name}", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
