"""Docstrings of public functions have all parts, also in wheels; the shares may only grow."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "packages" / "flow-core"
sys.path[:0] = [str(ROOT / "docs"), str(CORE)]

import hatch_build  # noqa: E402 - a program of the build
from reference_pages import docstrings  # noqa: E402 - a program in docs/
from reference_pages.names import Entry, entries  # noqa: E402
from reference_pages.ops import is_runnable  # noqa: E402

pytestmark = pytest.mark.arithmetic


def parameters(entry: Entry) -> list[str]:
    """Return the parameters that users pass, without those that begin with an underscore."""
    try:
        found = inspect.signature(entry.object).parameters
    except ValueError:
        return []
    return [name for name in found if not name.startswith("_")]


def described(entry: Entry, section: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    items = docstrings.parse(entry.object.__doc__).items(section)
    return {name.strip(" *`") for names, _ in items for name in names.split(",")}


def share(entries: list[Entry], having: list[Entry]) -> float:
    return len(having) / len(entries)


def test_every_public_object_is_described() -> None:
    assert [e.name for e in entries() if not docstrings.summary(e.object.__doc__)] == []


def test_described_arguments_exist() -> None:
    """A docstring names no argument that the function does not have."""
    wrong = {}
    for entry in entries():
        found = inspect.signature(entry.object).parameters if parameters(entry) else {}
        if any(p.kind is p.VAR_KEYWORD for p in found.values()):
            continue
        odd = described(entry, "Args") - set(found)
        if odd:
            wrong[entry.name] = odd
    assert wrong == {}


def test_arguments_are_described() -> None:
    having = [e for e in entries() if parameters(e)]
    complete = [
        e for e in having if set(parameters(e)) <= described(e, "Args") | described(e, "Attributes")
    ]
    assert share(having, complete) > ARGS


def test_results_are_described() -> None:
    having = [
        e
        for e in entries()
        if inspect.isfunction(e.object)
        and inspect.signature(e.object).return_annotation not in ("None", "NoReturn", None)
    ]
    complete = [e for e in having if "Returns" in docstrings.parse(e.object.__doc__).sections]
    assert share(having, complete) > RETURNS


def test_examples_are_runnable() -> None:
    """The tests run these examples as doctests, and the build of the site does too."""
    found = [e for e in entries() if not always_raises(e)]
    assert share(found, [e for e in found if is_runnable(e.object.__doc__)]) > EXAMPLES


def always_raises(entry: Entry) -> bool:
    return getattr(entry.object, "__annotations__", {}).get("return") == "NoReturn"


ARGS, RETURNS, EXAMPLES = 0.95, 0.9, 0.78
"""The smallest shares of public functions and classes with a section; 1 is the aim."""


# ----------------------------------------------------------- what modules describe once


def own_parameters(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    doc = docstrings.parse(ast.get_docstring(node))
    section, items = doc.sections.get("Args", ""), doc.items("Args")
    assert not section or docstrings.ITEM.match(section.splitlines()[0]), f"{node.name}: {section}"
    return {name: " ".join(text.split()) for names, text in items for name in names.split(", ")}


def test_no_function_repeats_what_its_module_describes() -> None:
    repeated = []
    for path in hatch_build.API.rglob("*.py"):
        common = hatch_build.shared_by(path).parameters
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                for name, text in own_parameters(node).items():
                    if text == " ".join(common.get(name, "").split()):
                        repeated.append(f"{path.stem}.{node.name}: {name}")
    assert repeated == []


def test_what_modules_describe_is_used() -> None:
    """Each parameter that a module or package describes is one of its functions, or of a class."""
    unused = []
    for path in hatch_build.API.rglob("*.py"):
        parts = docstrings.parse(ast.get_docstring(ast.parse(path.read_text())))
        names = {name for names, _ in parts.items("Args") for name in names.split(", ")}
        for module in path.parent.rglob("*.py") if path.name == "__init__.py" else [path]:
            for node in ast.parse(module.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    taken = hatch_build.parameters(node, {}) if names else ()
                    names -= set(taken) - set(own_parameters(node))
        unused += [f"{path.stem}: {name}" for name in sorted(names)]
    assert unused == []


# ------------------------------- docstrings in wheels, which editors read without importing


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Return the modules that a wheel has in place of the sources, by path."""
    return dict(hatch_build.documented_sources())


def without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
    return ast.dump(tree)


def test_wheels_differ_in_docstrings_only(sources: dict[str, str]) -> None:
    assert len(sources) > 30
    for name, text in sources.items():
        assert without_docstrings(text) == without_docstrings((CORE / "src" / name).read_text())


def test_docstrings_in_wheels_are_those_of_loaded_objects(sources: dict[str, str]) -> None:
    static = {
        (name.removesuffix(".py").replace("/", "."), node.name): ast.get_docstring(node)
        for name, text in sources.items()
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    compared = 0
    for entry in entries():
        found = static.get((entry.object.__module__, entry.object.__name__))
        if found is not None:
            assert found == inspect.getdoc(entry.object), entry.name
            compared += 1
    assert compared > 150


def test_complete_docstrings_are_kept(sources: dict[str, str]) -> None:
    text = sources["flow_core/api/math/unary.py"]
    assert hatch_build.documented(text, hatch_build.shared([])) == text


def test_python_may_drop_docstrings() -> None:
    code = "import oneflow; print(oneflow.math.exp.__doc__)"
    assert processes.run([sys.executable, "-OO", "-c", code], check=True).stdout == "None\n"
