"""Put the completed docstrings of the API into wheels, where editors read them without importing.

Without a build, as in editable installations, `flow_core.api.calls.documented` completes them when
the names are loaded; it leaves complete docstrings as they are.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

SOURCE = Path(__file__).parent / "src"
API = SOURCE / "flow_core" / "api"
sys.path.insert(0, str(SOURCE))
from flow_core.api.calls.documented import Shared, completed, shared  # noqa: E402

sys.path.remove(str(SOURCE))
DOCSTRING = re.compile(r'(r?""")(.*)"""', re.S)


def documented_sources(package: Path = API) -> Iterator[tuple[str, str]]:
    """Yield the path below ``src`` and the text of each module whose docstrings change."""
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        changed = documented(text, shared_by(path, package))
        if changed != text:
            yield path.relative_to(SOURCE).as_posix(), changed


def shared_by(path: Path, package: Path = API) -> Shared:
    """Return what a module and the packages around it describe."""
    folders = [p for p in reversed(path.parents) if p.is_relative_to(package)]
    modules = [f / "__init__.py" for f in folders] + [path] * (path.name != "__init__.py")
    return shared(ast.get_docstring(ast.parse(module.read_text())) for module in modules)


def documented(text: str, common: Shared) -> str:
    """Return a module's text with completed docstrings of its public functions and classes."""
    lines = text.split("\n")
    kinds = ast.FunctionDef | ast.ClassDef
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, kinds)}
    for node in reversed(nodes.values()):
        if node.name.startswith("_") or ast.get_docstring(node) is None:
            continue
        place = slice(node.body[0].lineno - 1, node.body[0].end_lineno)
        match = DOCSTRING.fullmatch("\n".join(lines[place]).strip())
        if match is None or _has_documented_init(node):
            continue
        doc = match[2].replace("\n    ", "\n")
        doc = completed(doc, parameters(node, nodes), common, result=_has_result(node))
        end = '\n"""' if "\n" in doc else '"""'
        lines[place] = indent(f"{match[1]}{doc}{end}", "    ").split("\n")
    return "\n".join(lines)


def _has_documented_init(node: Any) -> bool:
    members = (n for n in node.body if isinstance(node, ast.ClassDef))
    inits = (n for n in members if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    return any(ast.get_docstring(init) for init in inits)


def _has_result(node: Any) -> bool:
    returns = ast.unparse(node.returns) if getattr(node, "returns", None) else ""
    return isinstance(node, ast.FunctionDef) and returns not in ("None", "NoReturn")


def parameters(node: Any, nodes: dict[str, Any]) -> list[str]:
    """Return the names of the parameters of a function, or of a class's constructor."""
    if isinstance(node, ast.FunctionDef):
        a = node.args
        given = (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg)
        return [arg.arg for arg in given if arg is not None]
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return parameters(member, nodes)[1:]
    bases = [nodes[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in nodes]
    names: list[str] = []
    keywords: list[str] = []
    for base in bases:
        (keywords if "kw_only=True" in _decorators(base) else names).extend(parameters(base, nodes))
    if "dataclass" in _decorators(node):
        fields = (n for n in node.body if isinstance(n, ast.AnnAssign))
        names += [f.target.id for f in fields if "init=False" not in ast.unparse(f)]
    return list(dict.fromkeys((*names, *keywords)))


def _decorators(node: Any) -> str:
    return " ".join(map(ast.unparse, node.decorator_list))


def get_build_hook() -> type:
    """Return the hook, which is called by hatchling."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class DocumentedSources(BuildHookInterface):
        """Replace the modules of the API by documented ones, except in editable installations."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if version == "editable":
                return
            self.folder = tempfile.TemporaryDirectory()
            for name, text in documented_sources():
                path = Path(self.folder.name, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                build_data["force_include"][str(path)] = name

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            if version != "editable":
                self.folder.cleanup()

    return DocumentedSources
