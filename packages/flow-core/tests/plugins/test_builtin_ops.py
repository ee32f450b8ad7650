"""The built-in ops and kernels: every family is listed, and every op has a kernel."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flow_core
from flow_core.base.config import Settings
from flow_core.builtin.ops_plugin import FAMILIES
from flow_core.plugins.host import load_plugins

ROOT = Path(flow_core.__file__).parent


def modules_with(table: str, folder: str) -> set[str]:
    """Return the dotted names of the modules that define a table, relative to a folder."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if table in _assigned(path)]
    return {".".join(path.relative_to(ROOT / folder).with_suffix("").parts) for path in paths}


def _assigned(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize(
    ("table", "folder"), [("OPS", "ops"), ("KERNELS", "builtin/numpy_kernels")]
)
def test_all_families_are_listed(table: str, folder: str) -> None:
    differing = modules_with(table, folder) ^ set(FAMILIES)
    assert not differing, (
        f"FAMILIES of flow_core/builtin/ops_plugin.py lists the modules of both: {differing}"
    )
    assert len(set(FAMILIES)) == len(FAMILIES)


def test_every_computing_op_has_a_kernel_and_every_kernel_an_op() -> None:
    registry = load_plugins(Settings(plugins=()))
    kernels = {op for op, device in registry.all_kernels if device == "cpu"}
    assert kernels <= set(registry.ops)
    computing = {
        spec.type for spec in registry.ops.values() if spec.reference and spec.alias is None
    }
    missing = sorted(computing - kernels)
    assert not missing, (
        f"{missing}: add a kernel to KERNELS of the family in flow_core/builtin/numpy_kernels"
    )
