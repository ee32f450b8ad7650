"""The pages of modules: errors, the API for plugins, and an overview of all modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from reference_pages import docstrings, public
from reference_pages.signatures import signature

ROOT = Path(__file__).parents[2]
OVERVIEW = "reference/internals"
PLUGINS = "reference/plugins"
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""The front matter of pages whose names would hide the public ones in a search."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and text of every page about modules."""
    yield "reference/errors.md", _module("flow_core.base.errors", "Errors")
    for package in ("flow_fit", "flow_rules", "flow_zoo"):
        yield f"reference/{package}.md", _module(package, package)
    yield from _plugin_api()
    yield from _internals()


# ----------------------------------------------------------------------- pages with all details


def _plugin_api() -> Iterator[tuple[str, str]]:
    package = importlib.import_module("flow_core.authoring")
    names = [f"flow_core.authoring.{m.name}" for m in pkgutil.iter_modules(package.__path__)]
    names += ["flow_core.base.config", "flow_core.base.dtypes", "flow_core.testing"]
    lines = ["# API for plugins", "", "| module | contents |", "|---|---|"]
    for name in names:
        text = docstrings.summary(importlib.import_module(name).__doc__)
        lines.append(f"| [`{name}`]({name}.md) | {docstrings.cell(text)} |")
        yield f"{PLUGINS}/{name}.md", _module(name, name)
    yield f"{PLUGINS}/index.md", "\n".join(lines) + "\n"


def _module(name: str, title: str) -> str:
    """Return a page with the full documentation of a module's public names."""
    module = importlib.import_module(name)
    own = name.startswith("flow_core.base")  # the others consist of imports
    names = [
        member
        for member, found in vars(module).items()
        if not (member.startswith("_") or (own and getattr(found, "__module__", "") != name))
    ]
    lines = [f"# {title}", "", docstrings.fenced(module.__doc__ or ""), ""]
    for member in sorted(names):
        found = getattr(module, member)
        if inspect.isfunction(found) or inspect.isclass(found):
            doc = docstrings.parse(found.__doc__)
            lines += [f"## {member}", "", "```python", signature(member, found), "```", ""]
            lines += [docstrings.fenced(doc.text), "", *docstrings.sections(doc, 3)]
            lines += public.methods(found)
    return "\n".join(lines) + "\n"


# -------------------------------------------------------------------------------- the overview


def _internals() -> Iterator[tuple[str, str]]:
    """Yield a page per folder of a package: its modules, functions and classes in one line each."""
    rows = []
    for source in sorted(ROOT.glob("packages/*/src/flow_*")):
        folders = [source] if source.name != "flow_core" else sorted(_folders(source))
        for folder in folders:
            name = ".".join(folder.relative_to(source.parent).parts)
            text = docstrings.summary(ast.get_docstring(_tree(folder / "__init__.py")))
            rows.append(f"| [`{name}`]({name}.md) | {docstrings.cell(text)} |")
            page = "\n".join(_folder(folder, source.parent))
            yield f"{OVERVIEW}/{name}.md", f"{UNSEARCHED}{page}\n"
    head = ["# Modules", "", "For contributors: all modules, with one line per function and class."]
    lines = [*head, "", "| folder | contents |", "|---|---|", *rows]
    yield f"{OVERVIEW}/index.md", "\n".join(lines) + "\n"


def _folders(package: Path) -> Iterator[Path]:
    yield package
    yield from (path for path in package.iterdir() if (path / "__init__.py").exists())


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _folder(folder: Path, source: Path) -> Iterator[str]:
    name = ".".join(folder.relative_to(source).parts)
    top = folder.parent == source and folder.name == "flow_core"
    yield from (f"# {name}", "")
    for path in sorted(folder.glob("*.py") if top else folder.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = _tree(path)
        yield from (f"## {module}", "", docstrings.summary(ast.get_docstring(tree)), "")
        rows = [f"- `{_head(node)}`: {_text(node)}" for node in tree.body if _is_public(node)]
        yield from (*rows, "")


def _is_public(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")


def _head(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        return f"{node.name}({', '.join(arg.arg for arg in given)})"
    assert isinstance(node, ast.ClassDef)
    return f"class {node.name}"


def _text(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    return docstrings.summary(ast.get_docstring(node))
