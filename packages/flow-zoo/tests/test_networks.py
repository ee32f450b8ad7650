"""Networks compute what torchvision and transformers compute with the same weights.

`recorded.json` states their versions; `test_peers.py` compares with the installed ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo_cases import CASES, arrays, record

import flow_zoo
import oneflow as flow
from flow_core.base.errors import SourceLine

RECORD = record()
TOLERANCES = {flow.float32: 1e-5, flow.double: 1e-11}
SLOW = ("mobilenet_v2", "resnet50")
"""Cases whose train jobs take seconds to compile."""


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


def load(name: str) -> Any:
    return flow_zoo.load(CASES[name].model, arrays(RECORD[name]["shapes"]))


@pytest.mark.parametrize("kind", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_published_networks(name: str, kind: Any) -> None:
    case = CASES[name]
    job = case.job(kind)
    assert load(name).missing == []
    for found, expected in zip(job(case.batch(kind)), RECORD[name]["results"], strict=True):
        assert found.dtype == kind.numpy
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCES[kind])
        assert np.std(expected) > 0.05


def test_lines_are_those_of_the_program_and_of_the_network() -> None:
    lines = CASES["resnet18"].job().prepare().build.builder.lines
    found = [line for name, line in lines.items() if "layer1.0.conv1" in name]
    assert found
    for line in found:
        assert Path(line.file).parent.name == "zoo_cases"
        assert re.fullmatch(r"flow_zoo/resnet\.py:\d+", line.inner)
        assert SourceLine.parsed(str(line)) == line


def trained(name: str, devices: int) -> dict[str, Any]:
    """Return the losses of two steps, and the weights after them."""
    flow.clear_default_session()
    case = CASES[name]
    job = case.job(flow.double, train=True, devices=devices)
    load(name)
    before = weights()
    losses = np.concatenate([job(case.batch(flow.double)) for _ in range(2)])
    assert len({buffer.device for buffer in job.plan().buffers}) == devices
    after = weights()
    # Biases of keys, and those that a batch norm subtracts, have no influence.
    learned = [name for name in after if name.endswith(("-weight", "-gamma"))]
    assert [name for name in learned if np.array_equal(after[name], before[name])] == []
    return {"losses": losses, **after}


def weights() -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES],
)
def test_a_step_on_two_devices_is_that_of_one(name: str) -> None:
    one, two = trained(name, 1), trained(name, 2)
    assert one.keys() == two.keys()
    for key, value in one.items():
        np.testing.assert_allclose(two[key], value, rtol=1e-9, atol=1e-11, err_msg=key)
