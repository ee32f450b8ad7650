"""Checkpoints at URLs: saved, replaced, loaded; damage and foreign files are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError

fsspec = pytest.importorskip("fsspec")
ONES = np.ones((2, 3), np.float32)


@pytest.fixture
def system() -> Iterator[Any]:
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("layer/w", (2, 3)) * 1

    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def value() -> Any:
    return flow.get_all_variables()["layer/w"].numpy()


@pytest.mark.parametrize("name", ["model", "deep/model", "model.safetensors"])
def test_save_and_load(name: str, system: Any) -> None:
    url = f"memory://{name}"
    flow.load_variables({"layer/w": ONES})
    flow.checkpoint.save(url)
    assert system.isfile(f"/{name}") == name.endswith("safetensors")
    assert flow.checkpoint.get(url)["layer/w"].shape == (2, 3)
    for load in (flow.train.CheckPoint().load, flow.weights.load):
        flow.load_variables({"layer/w": 0 * ONES})
        load(url)
        np.testing.assert_array_equal(value(), ONES)


@pytest.mark.parametrize("name", ["model", "model.safetensors"])
def test_only_a_checkpoint_is_replaced_and_only_if_asked(name: str, system: Any) -> None:
    url = f"memory://{name}"
    flow.checkpoint.save(url, {"old": ONES, "layer/w": ONES})
    with pytest.raises(CheckpointError, match="already exists"):
        flow.checkpoint.save(url)
    flow.checkpoint.save(url, overwrite=True)
    assert [*flow.checkpoint.get(url)] == ["layer/w"]
    system.pipe("/notes/a.txt", b"mine")
    with pytest.raises(CheckpointError, match=r"no file 'snapshot_done', but 'a\.txt'"):
        flow.checkpoint.save("memory://notes", overwrite=True)
    assert system.cat("/notes/a.txt") == b"mine"


def test_a_copy_that_fails_leaves_the_old_checkpoint_and_the_next_save_succeeds(
    system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.checkpoint.save("memory://model", {"layer/w": ONES})
    put = type(system).put_file

    def fail(self: Any, local: str, path: str, **options: Any) -> None:
        if Path(path).name == "flow.sha256":
            raise OSError("the connection was reset")
        put(self, local, path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(system), "put_file", fail)
        with pytest.raises(CheckpointError, match="connection was reset") as found:
            flow.checkpoint.save("memory://model", {"layer/w": 0 * ONES}, overwrite=True)
    assert __file__ in str(found.value)
    assert flow.checkpoint.get("memory://model")["layer/w"].numpy().all()
    with pytest.raises(CheckpointError, match="overwrite=True"):
        flow.checkpoint.save("memory://model", {"layer/w": 0 * ONES})
    flow.checkpoint.save("memory://model", {"layer/w": 0 * ONES}, overwrite=True)
    assert not flow.checkpoint.get("memory://model")["layer/w"].numpy().any()
    assert {path.split("/")[1] for path in system.store} == {"model"}


def test_damage_is_found_and_missing_paths_are_named(system: Any) -> None:
    flow.checkpoint.save("memory://model", {"layer/w": ONES})
    system.pipe("/model/layer/w/out", bytes(24))
    with pytest.raises(CheckpointError, match="layer/w"):
        flow.train.CheckPoint().load("memory://model")
    assert not value().any()
    with pytest.raises(CheckpointError, match="no such path"):
        flow.checkpoint.get("memory://none")
    with pytest.raises(CheckpointError, match="nosuch"):
        flow.checkpoint.get("nosuch://none")
