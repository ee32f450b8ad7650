"""Changes of the plugin API are decisions: its surface equals a committed snapshot."""

from __future__ import annotations

import pytest
import snapshots
from snapshots.surface import definition, described, op_line, public_names, surface

from flow_core.ops.rules import like_input
from flow_core.plugins.specs import REQUIRED, OpSpec


def test_surface_equals_the_snapshot() -> None:
    snapshots.check("packages/flow-core/tests/plugins/public_surface.txt")


def test_surface_has_defaults_of_fields_arguments_and_attributes() -> None:
    lines = surface()
    assert "flow_core.authoring.specs: KernelSpec.priority: int = 0" in lines
    assert "flow_core.authoring.specs: load(target: Lazy, owner: str='') -> Any" in lines
    assert "hook flow_doctor(config: Settings) -> Iterable[str]" in lines
    spec = OpSpec(
        "cube", ("x", "y?"), like_input, attrs={"side": 3, "axis": REQUIRED}, mutates=(0,)
    )
    assert op_line(spec) == "op cube(x, y?, axis=REQUIRED, side=3) -> out; overwrites (0,)"


@pytest.mark.parametrize("name", ["KernelSpec", "Comm", "load", "Lazy"])
def test_every_public_name_has_a_definition(name: str) -> None:
    module = "flow_core.authoring.backends" if name == "Comm" else "flow_core.authoring.specs"
    assert name in public_names(module)
    assert list(described(name, definition(module, name)))
