"""No code parses names of ops or buffers, or texts of devices.

`Origin`, `Buffer`, `Value` and `Device` hold these facts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
CORE = ROOT / "packages" / "flow-core" / "src" / "flow_core"
SPELLINGS = {str(CORE / "ir" / "graph.py"), str(CORE / "plan.py")}
"""The modules whose `Origin` and `Buffer` spell names."""
MARKS = ("/micro_", "/recomputed", "/workspace", r"@\d", r"@(\d")
METHODS = {
    "split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix",
    "removesuffix", "find", "rfind", "index", "count", "replace",
}  # fmt: skip


def parsed(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that parse the name of an op, value or buffer, or the text of a device."""
    tree = ast.parse(source)
    bodies = (node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list))
    texts = {id(s.value) for body in bodies for s in body if isinstance(s, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in texts:
            yield from ((node.lineno, node.value) for mark in MARKS if mark in node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, first = ast.unparse(node.func.value), node.args[0] if node.args else None
            is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
            is_device = of.split(".")[-1] in ("device", "memory", "home") and is_text
            mark = first.value if isinstance(first, ast.Constant) else None
            is_value = of.split(".")[-1] in ("name", "value") and mark == ":"
            if node.func.attr in METHODS and (is_device or is_value or mark == "@"):
                yield node.lineno, ast.unparse(node)


@pytest.mark.slow
def test_no_module_parses_names() -> None:
    found = {str(path): list(parsed(path.read_text())) for path in SOURCES}
    assert len(found) > 600
    assert {path for path, rows in found.items() if rows} == SPELLINGS, found


@pytest.mark.parametrize(
    "code",
    [
        'name.rpartition("@")',
        're.sub(r"@\\d+$", "", name)',
        're.compile(r"/micro_(\\d+)")',
        'name.replace("/recomputed", "")',
        'task.device.split(":")',
        'device.startswith("gpu")',
        'buffer.name.rsplit(":", 1)',
        'name.removesuffix("/workspace")',
        'value.rpartition(":")',
    ],
)
def test_parsing_is_found(code: str) -> None:
    assert list(parsed(code))
