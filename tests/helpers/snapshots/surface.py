"""The public surface of the plugin API as text, one fact per line.

Names, fields and signatures are read from the sources, so that the text is the same for all
versions of Python.  Op types come from the registry of flow-core's own plugins.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import flow_core.authoring
from flow_core.base.config import Settings
from flow_core.plugins.hookspecs import API_VERSION, hook_arguments
from flow_core.plugins.host import load_plugins
from flow_core.plugins.specs import OpSpec

AUTHORING = [m.name for m in pkgutil.iter_modules(flow_core.authoring.__path__)]
MODULES = [
    *(f"flow_core.authoring.{name}" for name in AUTHORING),
    "flow_core.base.config",
    "flow_core.base.dtypes",
    "flow_core.base.errors",
    "flow_core.testing",
]
"""The public modules: what they define without an underscore, and import as the same name."""

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    spec = find_spec(module)
    assert spec is not None, module
    return ast.parse(Path(str(spec.origin)).read_text())


def names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    if isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names if alias.name == alias.asname)
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    for target in targets:
        elements = target.elts if isinstance(target, ast.Tuple) else [target]
        yield from (element.id for element in elements if isinstance(element, ast.Name))


def public_names(module: str) -> list[str]:
    """Return the public names of a module."""
    found = {name for node in tree(module).body for name in names(node)}
    return sorted(name for name in found if not name.startswith("_"))


def definition(module: str, name: str) -> Definition | None:
    """Return the statement that defines a name, in this module or the one it is imported from."""
    for node in tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    parent = find_spec(node.module)
                    is_package = parent is not None and parent.submodule_search_locations
                    submodule = is_package and find_spec(f"{node.module}.{alias.name}")
                    return None if submodule else definition(node.module, alias.name)
        elif isinstance(node, Definition) and name in names(node):
            return node
    raise LookupError(f"{name} of {module}")


def described(name: str, node: Definition | None) -> Iterator[str]:
    """Yield the lines of a name: signature, or fields and methods, or value."""
    match node:
        case None:
            yield f"{name}: module"
        case ast.FunctionDef():
            yield signature(name, node)
        case ast.ClassDef():
            bases = ", ".join(map(ast.unparse, node.bases))
            decorators = "".join(f"@{ast.unparse(d)} " for d in node.decorator_list)
            yield f"{name}: {decorators}class({bases})"
            for member in node.body:
                yield from (f"{name}.{line}" for line in member_lines(member))
        case ast.AnnAssign():
            yield f"{name}: {ast.unparse(node.annotation)}"
        case _:
            yield f"{name} = {ast.unparse(node.value)}"


def member_lines(node: ast.stmt) -> Iterator[str]:
    """Yield the line of a public member of a class."""
    if isinstance(node, ast.FunctionDef):
        if node.name == "__init__" or not node.name.startswith("_"):
            kinds = "".join(f"@{ast.unparse(d)} " for d in node.decorator_list)
            yield kinds + signature(node.name, node)
    elif isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
        default = "" if node.value is None else f" = {ast.unparse(node.value)}"
        yield f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{default}"


def signature(name: str, node: ast.FunctionDef) -> str:
    """Return a function's parameters, defaults and result."""
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{name}({ast.unparse(node.args)}){result}"


def op_line(spec: OpSpec) -> str:
    """Return the inputs, outputs, attributes and defaults of an op type."""
    attrs = "".join(f", {name}={default!r}" for name, default in sorted(spec.attrs.items()))
    mutates = f"; overwrites {spec.mutates}" if spec.mutates else ""
    return f"op {spec.type}({', '.join(spec.inputs)}{attrs}) -> {', '.join(spec.outputs)}{mutates}"


@cache
def surface() -> list[str]:
    """Return all lines of the snapshot."""
    lines = [f"plugin API {API_VERSION[0]}.{API_VERSION[1]}"]
    for hook in hook_arguments():
        node = definition("flow_core.plugins.hookspecs", hook)
        assert isinstance(node, ast.FunctionDef)
        lines.append(f"hook {signature(hook, node)}")
    for module in MODULES:
        for name in public_names(module):
            lines += [f"{module}: {line}" for line in described(name, definition(module, name))]
    registry = load_plugins(Settings(plugins=()))
    lines += [op_line(registry.ops[name]) for name in sorted(registry.ops)]
    return lines


def text(_: str = "") -> str:
    """Return the snapshot."""
    return "\n".join(surface()) + "\n"
