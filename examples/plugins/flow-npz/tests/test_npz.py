"""Checkpoints survive a round trip."""

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp


@pytest.fixture(params=[flow.float32, flow.bfloat16], ids=["float32", "bfloat16"])
def job(request):
    """A job with one variable, in a new session."""
    flow.clear_default_session()

    @flow.global_function()
    def weight() -> tp.Numpy:
        init = flow.random_normal_initializer()
        found = flow.get_variable("w", (3, 5), request.param, initializer=init)
        return flow.cast(found, flow.float32)

    yield weight
    flow.clear_default_session()


@pytest.mark.parametrize("name", ["weights.npz", "folder"])
def test_round_trip(job, name, tmp_path):
    before, path = job(), tmp_path / name
    flow.checkpoint.save(path, format="npz")
    flow.load_variables({"w": np.zeros_like(flow.get_all_variables()["w"].numpy())})
    assert not job().any()
    flow.load_variables(flow.checkpoint.get(path))
    np.testing.assert_array_equal(job(), before)


def test_the_suffix_selects_the_format(job, tmp_path):
    before = job()
    flow.checkpoint.save(tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as arrays:
        (name,) = arrays
        assert name.partition(":")[0] == "w"
        assert arrays[name].shape == before.shape
