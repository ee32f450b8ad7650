"""Hashes that are computed once."""

from __future__ import annotations

import copy
import pickle

import pytest

from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import B, S
from flow_core.sharding.topology import Placement


def layout() -> TensorLayout:
    return TensorLayout(Placement.parse("gpu", "0:0-3", (2, 2)), (S(0), B))


def test_equal_records_have_equal_hashes() -> None:
    assert layout() == layout()
    assert len({layout(), layout()}) == 1
    assert hash(layout()) != hash(TensorLayout(layout().placement, (B, B)))


@pytest.mark.parametrize("record", [layout(), layout().placement])
def test_hashes_stay_in_their_process(record: TensorLayout | Placement) -> None:
    """Strings have other hashes in other processes."""
    hash(record)
    for other in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert not hasattr(other, "_hash")
        assert other == record
        assert hash(other) == hash(record)
