"""Checkpoints with other names than the variables, names that cannot be saved, single files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, CheckpointReplacedError, VariableError


def declare(*names: str) -> None:
    """A job with variables of zeros."""
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        blobs = [flow.get_variable(n, (2,), initializer=flow.zeros_initializer()) for n in names]
        return flow.math.add_n(blobs) if len(blobs) > 1 else blobs[0]

    flow.get_all_variables()


def ones(*names: str) -> dict[str, Any]:
    return {name: np.ones(2, np.float32) for name in names}


def loaded() -> set[str]:
    """The variables that have their values from a checkpoint."""
    return {name for name, value in flow.get_all_variables().items() if value.numpy().all()}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A checkpoint of ``a``, ``b``, the state of an optimizer, and a step counter."""
    path = str(tmp_path / "model")
    flow.checkpoint.save(path, ones("a", "b", "a-momentum", "System-Train-TrainStep-job"))
    return path


# ----------------------------------------------------------------------------- what is reported


def test_differences_are_one_warning(path: str, caplog: pytest.LogCaptureFixture) -> None:
    declare("a", "c", "d")
    with caplog.at_level(logging.WARNING):
        flow.train.CheckPoint().load(path)
    (record,) = caplog.records
    assert "2 variables are missing from it, and keep their values: c, d" in record.getMessage()
    assert "1 of its names belong to no variable, and are ignored: b" in record.getMessage()
    assert Path(__file__).name in record.getMessage()
    assert loaded() == {"a"}


def test_an_optimizers_states_are_not_worth_a_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    declare("a", "b")
    flow.train.CheckPoint().load(path)
    assert not caplog.records


def test_strict_makes_every_difference_an_error(path: str) -> None:
    declare("a", "c")
    with pytest.raises(CheckpointError) as caught:
        flow.train.CheckPoint().load(path, strict=True)
    message = str(caught.value)
    for line in ("missing    'c'", "extra      'b'", "extra      'a-momentum'"):
        assert line in message
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert loaded() == set()


@pytest.mark.parametrize("names", [("a", "c"), ("c",)])
def test_not_strict_is_silent(
    path: str, names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    declare(*names)
    (Path(path) / "snapshot_done").unlink()
    (Path(path) / "b" / "out").unlink()
    flow.train.CheckPoint().load(path, strict=False)
    assert loaded() == {"a"} & set(names)
    assert set(flow.checkpoint.get(path, strict=False)) >= {"a"}
    assert "b" not in flow.checkpoint.get(path, strict=False)
    assert not caplog.records


@pytest.mark.parametrize("strict", [None, True])
def test_all_that_is_wrong_is_in_one_list(path: str, strict: bool | None) -> None:
    """With the checkpoint as a whole, with its files, with shapes, with names."""
    declare("a", "b", "c")
    (Path(path) / "snapshot_done").unlink()
    (Path(path) / "b" / "meta").write_text("nonsense")
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        a = flow.get_variable("a", (3,), initializer=flow.zeros_initializer())
        for name in ("b", "c"):
            flow.get_variable(name, (2,), initializer=flow.zeros_initializer())
        return a

    with pytest.raises(CheckpointError) as caught:
        flow.train.CheckPoint().load(path, strict=strict)
    lines = re.findall(r"^    (\w+) ", str(caught.value), re.MULTILINE)
    assert lines[:4] == ["incomplete", "misshapen", "unreadable", "missing"]
    assert set(lines[4:]) == {"extra"}
    assert "strict=False" in str(caught.value)


def test_get_refuses_what_is_not_whole(path: str) -> None:
    (Path(path) / "snapshot_done").unlink()
    with pytest.raises(CheckpointError, match="incomplete no file 'snapshot_done'") as caught:
        flow.checkpoint.get(path)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_load_variables_tells_of_names_that_it_ignores(caplog: pytest.LogCaptureFixture) -> None:
    declare("a")
    flow.load_variables(ones("a", "other", "a-momentum"))
    assert "1 of its names belong to no variable, and are ignored: other" in caplog.text
    caplog.clear()
    flow.load_variables(ones("a", "other"), ignore_mismatch=True)
    assert not caplog.records
    with pytest.raises(CheckpointError, match="'other', which no job has"):
        flow.load_variables(ones("a", "other"), ignore_mismatch=False)


def test_many_names_are_counted(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    flow.checkpoint.save(str(tmp_path / "many"), ones("a", *(f"other{n:03}" for n in range(100))))
    declare("a")
    flow.train.CheckPoint().load(str(tmp_path / "many"))
    assert "100 of its names" in caplog.text
    assert "other019 and 80 more" in caplog.text


# ------------------------------------------------------------------------- replaced, and damaged


def test_lazily_read_variables_are_of_the_checkpoint_that_was_opened(path: str) -> None:
    declare("a", "b")
    found = flow.checkpoint.get(path)
    flow.checkpoint.save(path, {n: 2 * v for n, v in ones("a", "b").items()}, overwrite=True)
    with pytest.raises(CheckpointReplacedError, match="open it again"):
        found["a"].numpy()
    with pytest.raises(CheckpointReplacedError):
        flow.load_variables(found)
    assert loaded() == set()
    flow.load_variables(flow.checkpoint.get(path))
    assert flow.get_all_variables()["b"].numpy().tolist() == [2, 2]


@pytest.mark.parametrize("load", ["load", "load_variables"])
def test_damage_leaves_the_session_as_it_was(path: str, load: str) -> None:
    declare("a", "b")
    found = flow.checkpoint.get(path)
    (Path(path) / "b" / "out").write_bytes(bytes(8))
    with pytest.raises(CheckpointError, match="damaged"):
        flow.train.CheckPoint().load(path) if load == "load" else flow.load_variables(found)
    assert loaded() == set()


# --------------------------------------------------------------------------------- single files


def test_safetensors_by_the_public_names(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="an extra of flow-core")
    declare("a", "b")
    flow.load_variables(ones("a", "b"))
    file = str(tmp_path / "weights.safetensors")
    flow.checkpoint.save(file)
    assert {n: v.tolist() for n, v in library.load_file(file).items()} == {
        n: v.tolist() for n, v in ones("a", "b").items()
    }
    with pytest.raises(CheckpointError, match="already exists"):
        flow.train.CheckPoint().save(file)
    flow.train.CheckPoint().save(file, overwrite=True)
    found = flow.checkpoint.get(file)
    assert (found["a"].shape, found["a"].dtype) == ((2,), flow.float32)
    assert found["a"].numpy().tolist() == np.asarray(found["b"]).tolist() == [1, 1]
    for load in (
        flow.train.CheckPoint().load,
        lambda f: flow.load_variables(flow.checkpoint.get(f)),
    ):
        declare("a", "b")
        load(file)
        assert loaded() == {"a", "b"}
    flow.checkpoint.save(str(tmp_path / "folder"), format="safetensors")
    assert (tmp_path / "folder" / "model.safetensors").is_file()
    assert set(flow.checkpoint.get(str(tmp_path / "folder"))) == {"a", "b"}
    with pytest.raises(CheckpointError, match="did you mean safetensors"):
        flow.checkpoint.save(str(tmp_path / "x"), format="safetensor")


def test_numbers_that_are_no_arrays(tmp_path: Path) -> None:
    flow.checkpoint.save(str(tmp_path / "model"), {"a": [1.5, 2.5], "b": 3})
    found = flow.checkpoint.get(str(tmp_path / "model"))
    assert found["a"].numpy().tolist() == [1.5, 2.5]
    assert found["b"].numpy() == 3


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1], r"var_dict with \[1\]"),
        (np.ones(2), "var_dict with array"),
        ({1: 2.0}, "var_dict with 1: 2.0"),
        ({"a": object()}, "object"),
    ],
)
def test_what_cannot_be_saved(tmp_path: Path, values: Any, found: str) -> None:
    with pytest.raises(CheckpointError, match=found):
        flow.checkpoint.save(str(tmp_path / "model"), values)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["zip", 3, ["snapshot"]])
def test_formats_that_nobody_provides(tmp_path: Path, format: Any) -> None:
    with pytest.raises(CheckpointError, match="allowed: snapshot, safetensors"):
        flow.checkpoint.save(str(tmp_path / "model"), {"a": 1.0}, format=format)


# ---------------------------------------------------------------------------------------- names


def plain(name: str) -> Any:
    return flow.get_variable(name, (2,), initializer=flow.ones_initializer())


def scoped(name: str) -> Any:
    with flow.scope.namespace(f"{name}/out"):
        return flow.get_variable("w", (2,), initializer=flow.ones_initializer())


def layer(name: str) -> Any:
    return flow.layers.dense(flow.constant(1.0, flow.float32, (1, 2)), 2, name=name)


def with_states(name: str) -> Any:
    return flow.get_variable("x" * 250, (2,), initializer=flow.ones_initializer())


BAD: list[tuple[Callable[[str], Any], str]] = [
    *(
        (plain, name)
        for name in ("..", "a/out", "a/meta", "a\0b", "\ud800", "a//b", "/a", "x" * 256)
    ),
    (layer, "a/../b"),
    (layer, "\udfff"),
    (scoped, ".."),
    (with_states, "the name of a momentum would be too long"),
]


@pytest.mark.parametrize(("make", "name"), BAD, ids=lambda x: getattr(x, "__name__", ascii(x)[:9]))
def test_names_that_no_checkpoint_holds_are_refused_where_they_are_given(
    make: Callable[[str], Any], name: str
) -> None:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        w = make(name)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rate, momentum=0.9).minimize(w)
        return w

    with pytest.raises(VariableError, match="a name with") as caught:
        job()
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    flow.clear_default_session()
