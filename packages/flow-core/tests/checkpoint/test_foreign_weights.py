"""Weights of other programs: files of torch and sharded safetensors, names, transposes, splits."""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_files import Saved, called, tensor

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, FlowError, UnsupportedError

RNG = np.random.default_rng(0)
QUERY, KEY = (RNG.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
BIAS = RNG.normal(size=(4,)).astype(np.float32)


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        q, k = (flow.get_variable(f"block0/{name}", (4, 3)) for name in ("query", "key"))
        b = flow.get_variable("block0/bias", (4,))
        y = flow.matmul(x, q + k, transpose_b=True) + b
        flow.optimizer.SGD(0.1).minimize(y)
        return y


def values() -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


def test_a_file_of_torch(tmp_path: Path) -> None:
    both = np.concatenate([QUERY.T.reshape(-1), KEY.reshape(-1)])
    tree = {
        "block0/query": tensor((4, 3), (1, 4), count=24),
        "block0/key": tensor((4, 3), (3, 1), count=24, offset=12),
        "block0/bias": tensor((4,), (1,), "HalfStorage", key="1"),
    }
    storages = {"0": both.tobytes(), "1": BIAS.astype(np.float16).tobytes()}
    path = Saved(tree, storages).write(tmp_path / "model.pt")
    report = flow.weights.load(path)
    assert not report.missing
    assert not report.unused
    np.testing.assert_array_equal(values()["block0/query"], QUERY)
    np.testing.assert_array_equal(values()["block0/key"], KEY)
    np.testing.assert_array_equal(values()["block0/bias"], BIAS.astype(np.float16))
    assert flow.checkpoint.get(path)["block0/query"].shape == (4, 3)


def test_a_notebook_shows_what_is_missing_first() -> None:
    loaded = {f"v{i}": f"a{i}" for i in range(40)}
    text = flow.weights.Report(loaded, ["<w>"], ["other"])._repr_html_()
    assert "40 variables loaded, 1 missing, 1 arrays unused" in text
    assert text.index("&lt;w&gt;") < text.index("other") < text.index("a0")
    assert "a27" in text
    assert "a28" not in text
    assert "and 12 more: print() shows all" in text


def test_files_that_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 4)
    torch.save({"epoch": 3, "state_dict": module.state_dict()}, tmp_path / "a.pt")
    torch.save(OrderedDict(weight=module.weight, bias=module.bias.bfloat16()), tmp_path / "b.pth")
    for name in ("a.pt", "b.pth"):
        report = flow.weights.load(tmp_path / name, names={"weight": "block0/query"})
        assert report.loaded == {"block0/query": "weight"}
        assert report.unused == ["bias"]
        np.testing.assert_array_equal(values()["block0/query"], module.weight.detach())
    torch.save(module, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"torch\.nn.*\n(.|\n)*state_dict"):
        flow.weights.load(tmp_path / "c.pt")
    flow.weights.load(module.state_dict(), names={"weight": "block0/key"})
    np.testing.assert_array_equal(values()["block0/key"], module.weight.detach())


def test_a_pickle_that_calls_a_function_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "made"
    path = Saved(called("os", "mkdir", str(target)), {}).write(tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match=r"the object os\.mkdir"):
        flow.weights.load(path)
    assert not target.exists()


def test_tensors_that_flow_cannot_read_are_refused_if_a_variable_needs_them(tmp_path: Path) -> None:
    tree = {"block0/bias": tensor((4,), (1,), key="1"), "x": tensor((4,), (1,), "ShortStorage")}
    torch_file = Saved(tree, {"1": BIAS.tobytes()}).write(tmp_path / "m.pt")
    other_file = tmp_path / "m.safetensors"
    for tag in ("F8_E4M3", "I16", "C64", "F4"):
        places = {"block0/bias": ("F32", 0, 16), "x": (tag, 16, 24)}
        keys = ("dtype", "shape", "data_offsets")
        head = {n: dict(zip(keys, (t, [4], at), strict=True)) for n, (t, *at) in places.items()}
        text = json.dumps(head).encode()
        other_file.write_bytes(len(text).to_bytes(8, "little") + text + BIAS.tobytes() + bytes(8))
        for path in (torch_file, other_file):
            report = flow.weights.load(path)
            assert (report.loaded, report.unused) == ({"block0/bias": "block0/bias"}, ["x"])
            found = flow.checkpoint.get(path)
            assert sorted(found) == ["block0/bias", "x"]
            flow.load_variables(found, ignore_mismatch=True)
            np.testing.assert_array_equal(values()["block0/bias"], BIAS)
            kind = "int16" if path == torch_file else tag
            with pytest.raises(CheckpointError, match=rf"unreadable 'x': elements of type {kind}"):
                flow.weights.load(path, {"x": "block0/key"})
            with pytest.raises(UnsupportedError, match=kind):
                found["x"].numpy()


def sharded(folder: Path) -> Path:
    library = pytest.importorskip("safetensors.numpy")
    folder.mkdir()
    library.save_file({"h.0.q": QUERY, "h.0.b": BIAS}, folder / "model-1.safetensors")
    library.save_file({"h.0.k": KEY}, folder / "model-2.safetensors")
    places = {"h.0.q": "model-1.safetensors", "h.0.b": "model-1.safetensors"}
    places |= {"h.0.k": "model-2.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 112}, "weight_map": places}))
    return index


def test_sharded_safetensors(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model")
    names = {r"h\.(\d+)\.q": r"block\1/query", r"h\.(\d+)\.k": r"block\1/key"}
    names |= {r"h\.(\d+)\.b": r"block\1/bias"}
    for path in (index, index.parent):
        report = flow.weights.load(path, names, strict=True)
        assert report.loaded["block0/key"] == "h.0.k"
    np.testing.assert_array_equal(values()["block0/key"], KEY)
    index.write_text('{"weight_map": {"h.0.q": "../model-1.safetensors"}}')
    with pytest.raises(CheckpointError, match="other folders"):
        flow.weights.load(index)
    index.write_text('{"weight_map": {"h.0.q": "model-1.safetensors"}}')
    with pytest.raises(
        CheckpointError, match=r"'h\.0\.b' of 'model-1\.safetensors' in the file only"
    ):
        flow.weights.load(index)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
@pytest.mark.parametrize("name", ["model-2.safetensors", "model.safetensors.index.json"])
def test_a_pipe_among_shards_is_refused(name: str, tmp_path: Path) -> None:
    sharded(tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    os.mkfifo(tmp_path / "model" / name)
    with pytest.raises(CheckpointError, match=f"reading .*{name} .*\n.*a pipe"):
        flow.weights.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "", ".", "..", "a" * 5000])
def test_names_of_shards_that_no_file_has(name: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(CheckpointError, match="reading"):
        flow.weights.load(index)


def test_a_tensor_in_two_places_is_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model")
    text = index.read_text()
    index.write_text(text.replace('"h.0.b":', '"h.0.q": "model-2.safetensors", "h.0.b":'))
    with pytest.raises(CheckpointError, match="a duplicate name"):
        flow.weights.load(index)
    (index.parent / "model-2.safetensors").write_bytes(
        (index.parent / "model-1.safetensors").read_bytes()
    )
    index.write_text(text.replace('"h.0.b": "model-1', '"h.0.b": "model-2'))
    with pytest.raises(CheckpointError, match=r"'h\.0\.b' of 'model-1\.safetensors' in the file"):
        flow.weights.load(index)


def test_transposes_and_splits() -> None:
    rule = flow.weights.Rule([r"\1/query", r"\1/key"], transpose=(1, 0), split=0)
    packed = np.concatenate([QUERY, KEY]).T
    report = flow.weights.load({"block0.qk": packed, "other": BIAS}, {r"(block0)\.qk": rule})
    np.testing.assert_array_equal(values()["block0/query"], QUERY)
    np.testing.assert_array_equal(values()["block0/key"], KEY)
    assert report.missing == ["block0/bias"]
    assert report.unused == ["other"]
    assert "block0/query from block0.qk" in str(report)


def test_skipped_arrays_and_required_variables() -> None:
    arrays = {"block0.query": QUERY, "block0.key": KEY, "block0.bias": BIAS[:2]}
    names = {r".*\.bias": None, r"(.*)\.(.*)": r"\1/\2"}
    report = flow.weights.load(arrays, names, required=r"block0/(query|key)")
    np.testing.assert_array_equal(values()["block0/key"], KEY)
    assert (report.missing, report.unused) == (["block0/bias"], ["block0.bias"])
    before = values()
    with pytest.raises(CheckpointError, match=r"missing    'block0/bias'") as found:
        flow.weights.load({**arrays, "block0.key": QUERY}, names, required=r"block0/.*")
    assert "block0/key" not in str(found.value)
    np.testing.assert_array_equal(values()["block0/key"], before["block0/key"])
    for wrong in ("(", 3, b"x"):
        with pytest.raises(CheckpointError, match="regular expressions as required"):
            flow.weights.load(arrays, names, required=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "names", "strict", "text"),
    [
        ({"block/query": QUERY}, None, False, "missing    'block0/query'.*did you mean"),
        ({}, None, False, "missing"),
        ({"block0/query": QUERY.T}, None, False, r"misshapen  'block0/query'.*\[3, 4\]"),
        ({"block0/bias": np.arange(4)}, None, False, "mistyped   'block0/bias'"),
        ({"a": BIAS, "b": BIAS}, lambda name: "block0/bias", False, "twice .*'a', 'b'"),
        ({"block0/bias": BIAS}, None, True, "missing    'block0/key'"),
        ({"a": QUERY}, {"a": ("transpose",)}, False, r"transpose  \(0, 0\) of 'a'"),
        ({"a": QUERY}, {"a": ("split",)}, False, "unknown    'no/such'"),
    ],
)
def test_mismatches_are_reported_and_nothing_is_loaded(
    arrays: Any, names: Any, strict: bool, text: str
) -> None:
    if isinstance(names, dict):
        rules = {
            "transpose": flow.weights.Rule("block0/query", transpose=(0, 0)),
            "split": flow.weights.Rule(["block0/query", "no/such"], split=0),
        }
        names = {"a": rules[names["a"][0]]}
    before = values()
    with pytest.raises(CheckpointError, match=text) as found:
        flow.weights.load(arrays, names, strict=strict)
    assert __file__ in str(found.value)
    for name, value in values().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_suffix_of_another_program_is_not_the_name_of_a_folder(tmp_path: Path) -> None:
    for name in ("model.pt", "model.onnx"):
        with pytest.raises(FlowError, match="read-only"):
            flow.checkpoint.save(str(tmp_path / name))
        assert not (tmp_path / name).exists()


class Broken:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no data")


@pytest.mark.parametrize(
    ("arrays", "names", "text"),
    [
        ({"block0/bias": BIAS}, {"(a": "b"}, r"the pattern '\(a': missing \)"),
        ({"block0/bias": BIAS}, {3: "b"}, "the pattern 3: first argument"),
        ({"block0/bias": BIAS}, {".*": r"\1"}, r"'\\\\1' for the pattern '\.\*': invalid group"),
        ({"block0/bias": BIAS}, {".*": [r"\g<x>"]}, "for the pattern '.\\*'"),
        ({"block0/bias": BIAS}, {".*": flow.weights.Rule([r"\g<x>"])}, "unknown group name 'x'"),
        ({"block0/bias": BIAS}, {".*": 3}, "3 for the pattern"),
        ({"block0/bias": BIAS}, lambda name: 3, r"3, which names\('block0/bias'\) returned"),
        ({"block0/bias": BIAS}, ["block0/bias"], "names=\\['block0/bias'\\]"),
        ({0: BIAS}, None, "the name 0"),
        ({"block0/bias": Broken()}, None, "unreadable 'block0/bias': RuntimeError: no data"),
        ({"block0/bias": np.array(["a"] * 4)}, None, "mistyped   'block0/bias': .*<U1"),
        ({"block0/bias": np.array([None] * 4)}, None, "mistyped   'block0/bias': .*object"),
        ({"block0/bias": np.zeros(4, complex)}, None, "mistyped   'block0/bias': .*complex128"),
        ({"block0/bias": np.array([0, 1e99, 1, 2])}, None, "overflow   'block0/bias': .* 1e.99"),
    ],
)  # fmt: skip
def test_wrong_rules_and_arrays(arrays: Any, names: Any, text: str) -> None:
    before = values()["block0/bias"]
    with pytest.raises(CheckpointError, match=text) as found:
        flow.weights.load(arrays, names)
    assert f"(at {__file__}:" in str(found.value)
    np.testing.assert_array_equal(values()["block0/bias"], before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"to": 3}, "to=3"),
        ({"to": ["a", 3]}, r"to=\['a', 3\]"),
        ({"to": "a", "transpose": ("x", "y")}, r"transpose=\('x', 'y'\)"),
        ({"to": "a", "transpose": 5}, "transpose=5"),
        ({"to": ["a", "b"], "split": "x"}, "split='x'"),
    ],
)
def test_wrong_attributes_of_rules(options: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text) as found:
        flow.weights.Rule(**options)
    assert f"(at {__file__}:" in str(found.value)


@pytest.mark.parametrize(
    ("dtype", "given", "wrong"),
    [
        (flow.int32, np.array([2**31 - 1, -(2**31)]), np.array([0, 2**40 + 5])),
        (flow.int8, np.array([127, -128]), np.array([300, 0])),
        (flow.uint8, np.array([255, 0]), np.array([0, -1])),
        (flow.int64, np.array([2**63 - 1, 0], np.uint64), np.array([2**63, 0], np.uint64)),
        (flow.float16, np.array([65504, np.inf], "f4"), np.array([np.inf, 1e6], "f4")),
        (flow.float32, np.array([np.nan, -np.inf]), np.array([-1e39, 0])),
        (flow.bfloat16, np.array([3e38, 1], "f4"), np.array([0, 1e300])),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype: Any, given: Any, wrong: Any) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("w", (2,), dtype=dtype, initializer=flow.ones_initializer())

    flow.weights.load({"w": given})
    np.testing.assert_array_equal(values()["w"], given.astype(dtype.numpy))
    with pytest.raises(CheckpointError, match="overflow   'w'"):
        flow.weights.load({"w": wrong})
    np.testing.assert_array_equal(values()["w"], given.astype(dtype.numpy))
