"""Programs under pyright and mypy, both in strict mode.

The programs of the documentation, the examples and ``programs/right.py`` have no errors.
``programs/wrong.py`` has errors in exactly the lines that it marks.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

import flow_core
import flow_typing
import oneflow

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/tutorial.md",
    "packages/flow-typing/README.md",
)
EXAMPLES = ("digits.py",)
BLOCK = re.compile(
    r'^```python(?: title="(?P<title>[^"]+)")?\n(?P<text>(?:.*\n)*?)```$', re.MULTILINE
)
OLDER_FORM = ("fit.py", "on_gpu.py", "spread.py")
"""Files of the tutorial whose annotations are calls, as in OneFlow."""

MARK = re.compile(r"# wrong(?:: (?P<checker>\w+))?$")
UNTYPED = ("Import", "MissingModuleSource", "MissingTypeStubs", "UnknownVariableType",
           "UnknownMemberType", "UnknownArgumentType")  # fmt: skip
"""Rules of pyright about libraries without type information, which the examples import."""

pytestmark = pytest.mark.arithmetic  # the checkers read the sources as for one version of Python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all programs, and settings of both checkers."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "all_names.py").write_text(all_names())
    for path in (*PROGRAMS.glob("*.py"), *(ROOT / "examples" / name for name in EXAMPLES)):
        (folder / path.name).write_text(path.read_text())
    for page in PAGES:
        programs: dict[str, list[str]] = {}
        for block in BLOCK.finditer((ROOT / page).read_text()):
            name = block["title"] or f"{page.removesuffix('.md').replace('/', '_')}.py"
            programs.setdefault(name, []).append(block["text"])
        for name, texts in programs.items():
            (folder / name).write_text("\n\n".join(texts))
    pyright = {"typeCheckingMode": "strict", "reportMissingImports": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(pyright))
    ignored = "disable_error_code = import-untyped,import-not-found"
    settings = f"[mypy]\nstrict = true\nincremental = false\n{ignored}\n"
    (folder / "mypy.ini").write_text(settings)
    return folder


IMPORTED = ("TYPE_CHECKING", "annotations", "piece")
"""Names in modules without ``__all__`` that are not public."""


def all_names() -> str:
    """Return a program that mentions each public name of ``oneflow`` and its modules."""
    lines = ["from typing import Any", "", "import oneflow as flow", "", "names: list[Any] = ["]
    for name in oneflow.__all__:
        value = getattr(oneflow, name)
        lines.append(f"    flow.{name},")
        if inspect.ismodule(value):
            inner = getattr(value, "__all__", [n for n in vars(value) if not n.startswith("_")])
            lines += [f"    flow.{name}.{n}," for n in inner if n not in IMPORTED]
    return "\n".join([*lines, "]", ""])


def run(folder: Path, module: str, *arguments: str) -> str:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (dependency group typecheck)")
    # mypy finds installed packages itself and rejects explicit paths to them
    roots = {str(Path(p.__file__).parents[1]) for p in (flow_core, flow_typing)}
    paths = os.pathsep.join(sorted(r for r in roots if not r.endswith("site-packages")))
    command = [sys.executable, "-m", module, *arguments]
    done = processes.run(command, cwd=folder, env={**os.environ, "MYPYPATH": paths}, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def of_pyright(folder: Path) -> Iterator[tuple[str, int, str]]:
    found = json.loads(run(folder, "basedpyright", "--outputjson", "-p", ".", "--pythonpath",
                           sys.executable))  # fmt: skip
    assert found["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    for error in found["generalDiagnostics"]:
        rule = error.get("rule", "")
        name = Path(error["file"]).name
        if name not in EXAMPLES or not rule.endswith(UNTYPED):
            yield name, error["range"]["start"]["line"] + 1, f"{rule}: {error['message']}"


def of_mypy(folder: Path) -> Iterator[tuple[str, int, str]]:
    output = run(folder, "mypy", "--config-file=mypy.ini", ".")
    for line in output.splitlines():
        match = re.match(r"(?P<file>\w+\.py):(?P<line>\d+): error: (?P<text>.*)", line)
        if match:
            yield match["file"], int(match["line"]), match["text"]


@pytest.fixture(scope="module", params=["pyright", "mypy"])
def errors(request: pytest.FixtureRequest, folder: Path) -> tuple[str, list[tuple[str, int, str]]]:
    """A checker's name and the file, line and text of its errors."""
    find = {"pyright": of_pyright, "mypy": of_mypy}[request.param]
    return request.param, list(find(folder))


def test_right_programs_have_no_errors(
    errors: tuple[str, list[tuple[str, int, str]]],
) -> None:
    exempt = ("wrong.py", *OLDER_FORM)
    found = [error for error in errors[1] if error[0] not in exempt]
    assert [error for error in found if 'Type of "spread"' not in error[2]] == []


def test_wrong_lines_have_errors(errors: tuple[str, list[tuple[str, int, str]]]) -> None:
    checker, found = errors
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    marks = {number: MARK.search(line) for number, line in enumerate(lines, 1)}
    expected = {number for number, mark in marks.items() if mark and mark[1] in (None, checker)}
    reported = {number: text for file, number, text in found if file == "wrong.py"}
    assert len(expected) >= 60
    assert {lines[number - 1] for number in expected - reported.keys()} == set()
    surplus = reported.keys() - expected
    assert {lines[number - 1]: reported[number] for number in surplus} == {}


def test_right_program_runs() -> None:
    processes.run([sys.executable, "-W", "error", str(PROGRAMS / "right.py")], check=True)


def test_functions_take_blobs_and_parameters_of_jobs() -> None:
    """A function that takes `BlobDef` refuses the parameters of a job, which have array types."""
    wrong = set()
    modules = (value for value in vars_of(oneflow) if inspect.ismodule(value))
    for function in {f for m in (oneflow, *modules) for f in vars_of(m) if inspect.isfunction(f)}:
        hints = {**function.__annotations__}
        hints.pop("return", None)
        if any(re.match(r"(Sequence\[)?BlobDef\b", str(hint)) for hint in hints.values()):
            wrong.add(f"{function.__module__}.{function.__name__}")
    assert wrong == set()


def vars_of(module: object) -> list[object]:
    return [getattr(module, name) for name in getattr(module, "__all__", vars(module))]
