"""Round trips, layouts and detection of the checkpoint formats."""

from __future__ import annotations

import importlib.util
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.config import Settings
from flow_core.base.dtypes import ALL, float32, int8
from flow_core.base.errors import CheckpointError
from flow_core.builtin.formats_plugin import FORMATS, flow_register_checkpoint_formats
from flow_core.checkpoint import StoredVariable, load, open_path, safetensors_format, save, snapshot
from flow_core.checkpoint.layout import meta_text, parse_meta, path_parts
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import FormatSpec

SNAPSHOT, SAFETENSORS = FORMATS[:2]
HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None
needs_safetensors = pytest.mark.skipif(
    not HAS_SAFETENSORS, reason="the package safetensors is not installed (an extra of flow-core)"
)
each_format = pytest.mark.parametrize(
    "format", [SNAPSHOT, pytest.param(SAFETENSORS, marks=needs_safetensors)], ids=lambda f: f.name
)
Values = dict[str, np.ndarray[Any, Any]]


def example() -> Values:
    rng = np.random.default_rng(3)
    values: Values = {
        f"type-{kind}": (rng.normal(size=(3, 5)) * 9).astype(kind.numpy) for kind in ALL
    }
    return values | {
        "scalar": np.float32(2.5).reshape(()),
        "empty": np.zeros((0, 4), np.float32),
        "deep/er/weight": rng.normal(size=(2, 1, 3)).astype(np.float32),
        "deep/er": np.arange(4),
        "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-2],
        "big-endian": np.arange(5, dtype=">f8"),
        "with space, ünïcode": np.ones(2, np.float32),
    }


def assert_same(found: Any, wanted: Values) -> None:
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype.newbyteorder("="), name
        np.testing.assert_array_equal(found[name], value)


@each_format
def test_saved_variables_are_loaded_unchanged(tmp_path: Path, format: FormatSpec) -> None:
    save(tmp_path / "model", example(), FORMATS, format=format.name)
    assert (tmp_path / "model" / "snapshot_done").read_bytes() == b""
    assert_same(load(tmp_path / "model", FORMATS), example())


@each_format
def test_checkpoint_without_variables(tmp_path: Path, format: FormatSpec) -> None:
    save(tmp_path / "model", {}, FORMATS, format=format.name)
    assert dict(load(tmp_path / "model", FORMATS)) == {}


@each_format
def test_types_are_available_without_reading_data(tmp_path: Path, format: FormatSpec) -> None:
    save(
        tmp_path / "model", {"a": np.ones((2, 3), ml_dtypes.bfloat16)}, FORMATS, format=format.name
    )
    assert str(load(tmp_path / "model", FORMATS).type_of("a")) == "bfloat16[2,3]"


@each_format
@pytest.mark.parametrize("value", [np.array(["text"]), np.array([object()]), np.zeros(2, complex)])
def test_unsupported_element_types_are_rejected(
    tmp_path: Path, format: FormatSpec, value: np.ndarray[Any, Any]
) -> None:
    with pytest.raises(CheckpointError, match="'odd'"):
        save(tmp_path / "model", {"odd": value}, FORMATS, format=format.name)
    assert list(tmp_path.iterdir()) == []


@each_format
@pytest.mark.parametrize("name", ["missing", "type-float32/out"])
def test_unknown_names_raise_key_error(tmp_path: Path, format: FormatSpec, name: str) -> None:
    save(tmp_path / "model", example(), FORMATS, format=format.name)
    with pytest.raises(KeyError):
        load(tmp_path / "model", FORMATS)[name]


def test_plugin_registers_all_formats() -> None:
    assert flow_register_checkpoint_formats(Settings()) == FORMATS
    names = ["snapshot", "safetensors", "safetensors_shards", "torch"]
    assert [f.name for f in FORMATS] == names
    assert [f.name for f in FORMATS if f.writer] == names[:2]


# -------------------------------------------------------------------------- folder layout


def test_layout_matches_oneflow(tmp_path: Path) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    save(tmp_path / "model", {"hidden-weight": value, "a/b": np.int64(7).reshape(())})
    root = tmp_path / "model"
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    assert files == [
        "a/b/meta",
        "a/b/out",
        "flow.sha256",
        "hidden-weight/meta",
        "hidden-weight/out",
        "snapshot_done",
    ]
    assert (root / "hidden-weight" / "out").read_bytes() == value.tobytes()
    meta = "shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n"
    assert (root / "hidden-weight" / "meta").read_text() == meta
    assert (root / "a" / "b" / "meta").read_text() == "shape {\n}\ndata_type: kInt64\n"


def test_older_layout_uses_requested_types(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "out").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (tmp_path / "snapshot_done").touch()
    untyped = load(tmp_path, FORMATS)
    with pytest.raises(CheckpointError, match="without a file 'meta'"):
        untyped["w"]
    wanted = {"w": TensorType((2, 3), float32), "other": TensorType((), int8)}
    assert load(tmp_path, FORMATS, wanted)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(CheckpointError, match="24 bytes"):
        load(tmp_path, FORMATS, {"w": TensorType((7,), float32)})["w"]


def test_own_meta_overrides_requested_types(tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones((2, 2), np.float32)})
    found = load(tmp_path / "model", FORMATS, {"w": TensorType((4,), float32)})
    assert found["w"].shape == (2, 2)


def test_truncated_data_is_rejected(tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones((2, 2), np.float32)})
    (tmp_path / "model" / "w" / "out").write_bytes(b"123")
    with pytest.raises(CheckpointError, match="3 bytes") as caught:
        load(tmp_path / "model", FORMATS)["w"]
    assert "16 for float32[2,2]" in str(caught.value)


def test_single_variable_loads_from_its_folder(tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones((2, 2), np.float32)})
    one = open_path(tmp_path / "model" / "w", FORMATS)
    assert isinstance(one, StoredVariable)
    assert (one.shape, one.dtype, one.has_meta_info) == ((2, 2), float32, True)
    assert one.numpy().sum() == 4
    assert set(open_path(tmp_path / "model", FORMATS)) == {"w"}


def test_changing_a_loaded_array_does_not_change_the_file(tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones(4, np.float32)})
    load(tmp_path / "model")["w"][:] = 5
    assert load(tmp_path / "model")["w"].tolist() == [1, 1, 1, 1]


def test_links_are_followed_and_cycles_are_rejected(tmp_path: Path) -> None:
    save(tmp_path / "pretrained", {"w": np.ones(4, np.float32)})
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "backbone").symlink_to(tmp_path / "pretrained")
    (tmp_path / "mixed" / "circle").symlink_to(tmp_path / "mixed")
    assert set(load(tmp_path / "mixed", strict=False)) == {"backbone/w"}


def test_pickle_file_is_read_as_plain_bytes(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os._exit, (7,)

    raw = pickle.dumps(Bomb())
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "out").write_bytes(raw)
    found = load(tmp_path, FORMATS, {"w": TensorType((len(raw),), int8)}, strict=False)
    assert found["w"].tobytes() == raw


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/../b", "/etc", "a//b", "a/", "a\\b", "c:x", "a\0b"]
)
def test_unsafe_names_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="allowed"):
        save(tmp_path / "model", {name: np.ones(2, np.float32)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("a", "a/out"), ("a/meta", "a"), ("snapshot_done",)])
def test_clashing_names_are_rejected(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError):
        save(tmp_path / "model", {name: np.ones(2, np.float32) for name in names})
    assert list(tmp_path.iterdir()) == []


PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:"), min_size=1, max_size=6)


@pytest.mark.slow
@given(st.lists(PARTS, min_size=1, max_size=3).map("/".join))
def test_accepted_names_stay_inside_the_folder(name: str) -> None:
    try:
        parts = path_parts(name)
    except CheckpointError:
        return
    assert os.path.normpath(os.path.join("/root", *parts)) == "/root/" + name


@pytest.mark.parametrize(
    "text",
    [
        "shape { dim: 2 dim: 3 } data_type: kFloat",
        "data_type: kFloat\nshape {\n  dim: 2\n  dim: 3\n}",
        "shape: { dim: [2, 3] }; data_type: 2;",
        "shape < dim: 2, dim: 3 > # a comment } \n data_type : kFloat",
    ],
)
def test_meta_spellings_are_accepted(text: str) -> None:
    assert parse_meta(text, Path("meta")) == TensorType((2, 3), float32)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shape { dim: 2 }",
        "data_type: kFloat",
        "shape { dim: -2 } data_type: kFloat",
        "shape { dim: 2 } data_type: kOFRecord",
        "shape { dim: 2 } data_type: kFloat more",
        "shape { dim: x } data_type: kFloat",
    ],
)
def test_broken_meta_is_rejected(text: str, tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones(2, np.float32)})
    (tmp_path / "model" / "w" / "meta").write_text(text)
    with pytest.raises(CheckpointError, match="meta"):
        load(tmp_path / "model")
    with pytest.raises(CheckpointError, match="meta"):
        load(tmp_path / "model", strict=False)["w"]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**6), max_size=2), st.sampled_from(ALL))
def test_meta_round_trip(shape: list[int], dtype: Any) -> None:
    kind = TensorType(tuple(shape), dtype)
    assert parse_meta(meta_text(kind), Path("meta")) == kind


# ----------------------------------------------------------------------- format detection


@pytest.mark.parametrize("make", [lambda p: None, Path.mkdir, Path.touch])
def test_no_format_recognizes_the_path(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "model")
    with pytest.raises(CheckpointError, match="snapshot, safetensors"):
        load(tmp_path / "model", FORMATS)


def test_two_formats_recognize_the_path(tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones(2, np.float32)})
    (tmp_path / "model" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="snapshot and safetensors"):
        load(tmp_path / "model", FORMATS)


def test_read_only_format_cannot_save(tmp_path: Path) -> None:
    only = FormatSpec("only", snapshot.can_open, "flow_core.checkpoint.snapshot:read")
    with pytest.raises(CheckpointError, match="read-only"):
        save(tmp_path / "model", {}, [only], format="only")
    with pytest.raises(CheckpointError, match="did you mean snapshot"):
        save(tmp_path / "model", {}, FORMATS, format="snapshots")


@needs_safetensors
def test_single_safetensors_file(tmp_path: Path) -> None:
    save(tmp_path / "model", example(), FORMATS, format=SAFETENSORS.name)
    file = tmp_path / "bare.safetensors"
    (tmp_path / "model" / "model.safetensors").rename(file)
    assert_same(load(file, FORMATS), example())


@needs_safetensors
def test_broken_safetensors_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match=r"reading .*model\.safetensors"):
        load(tmp_path, FORMATS)


def test_missing_safetensors_error_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(safetensors_format, "import_module", absent)
    with pytest.raises(CheckpointError, match=r"packages/flow-core\[safetensors\]'"):
        save(tmp_path / "new", example(), FORMATS, format=SAFETENSORS.name)
    assert not (tmp_path / "new").exists()
