"""Devices: text form and invalid texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.errors import GraphError
from flow_core.sharding.topology import Device

numbers = st.integers(0, 10**9 - 1)


@given(st.builds(Device, st.sampled_from(["cpu", "gpu", "my-chip"]), numbers, numbers))
def test_text_form_round_trips(device: Device) -> None:
    assert Device.parse(str(device)) == device


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "gpu:0", "gpu:0:1:2", ":0:1", "gpu:-1:0", "gpu:0:x", "g pu:0:0", "gpu:0:٣", 3],
)
def test_invalid_texts_are_rejected(text: str) -> None:
    with pytest.raises(GraphError, match="reading a device") as caught:
        Device.parse(text)
    assert '"gpu:0:1"' in str(caught.value)


def test_devices_are_ordered_numerically() -> None:
    assert sorted([Device("gpu", 0, 10), Device("gpu", 0, 9)])[0].index == 9
