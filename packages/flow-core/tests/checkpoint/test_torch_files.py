"""Files of torch: values of all kinds, and damaged and hostile files within bounds."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_files
from torch_files import Raw, Saved, called, glob, pickled, tensor

import oneflow as flow
from flow_core.base.errors import CheckpointError, CheckpointReplacedError, UnsupportedError
from flow_core.checkpoint import torch_format, torch_pickle

W = np.array([[1, 2, 3], [-4, 5, 6]], "<f4")
DATA = {"0": W.tobytes()}
MATRIX = tensor((2, 3), (3, 1))
VECTOR = tensor((6,), (1,))
FLAT = W.reshape(-1)


def read(tmp_path: Path, tree: Any, storages: Any = None, **options: Any) -> dict[str, Any]:
    saved = Saved(tree, DATA if storages is None else storages, **options)
    return {name: v.numpy() for name, v in get(saved.write(tmp_path / "m.pt")).items()}


def get(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = flow.checkpoint.get(str(path))
    return found


# ------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("made", "right"),
    [
        (tensor((2, 3), (3, 1)), W),
        (tensor((3, 2), (1, 3)), W.T),
        (tensor((2,), (3,), offset=1, count=6), W[:, 1]),
        (tensor((), (), offset=4, count=6), np.float32(5)),
        (tensor((0, 3), (3, 1), count=6), np.empty((0, 3), "f4")),
        (tensor((4, 3), (0, 1), offset=3, count=6), np.tile(W[1], (4, 1))),
        (tensor((6,), (1,), metadata={"neg": True}), -FLAT),
        (tensor((6,), (1,), metadata={"neg": False, "conj": True}), FLAT),
        (tensor((6,), (1,), "storage.UntypedStorage", count=24, dtype="float32"), FLAT),
        (called("torch._utils", "_rebuild_parameter", VECTOR, True, {}), FLAT),
        (called("torch._utils", "_rebuild_parameter_with_state", VECTOR, True, {}, {}), FLAT),
        (
            called(
                "torch._tensor", "_rebuild_from_type_v2",
                glob("torch._utils", "_rebuild_parameter"), glob("torch", "Tensor"),
                (VECTOR, False, {}), {"name": "x"},
            ),
            FLAT,
        ),
    ],
)  # fmt: skip
def test_tensors(made: Raw, right: Any, tmp_path: Path) -> None:
    found = read(tmp_path, {"w": made})["w"]
    assert found.shape == np.shape(right)
    np.testing.assert_array_equal(found, right)


DTYPES = {
    "Float": np.dtype("f4"), "Double": np.dtype("f8"), "Half": np.dtype("f2"),
    "BFloat16": flow.bfloat16.numpy, "Long": np.dtype("i8"), "Int": np.dtype("i4"),
    "Char": np.dtype("i1"), "Byte": np.dtype("u1"), "Bool": np.dtype("?"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DTYPES)
def test_numbers_of_both_byte_orders(kind: str, tmp_path: Path) -> None:
    dtype = DTYPES[kind]
    right = np.array([1, 0, 1] if kind in ("Bool", "Byte") else [1, 2, -100]).astype(dtype)
    swapped = right.view("u1").reshape(3, -1)[:, ::-1].tobytes()
    tree = {"w": tensor((3,), (1,), kind + "Storage")}
    for order, data in ((b"little", right.tobytes()), (b"big", swapped), (None, right.tobytes())):
        found = read(tmp_path, tree, {"0": data}, byte_order=order)["w"]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, right)
        alone = {"w": tensor((), (), kind + "Storage", count=3)}
        assert read(tmp_path, alone, {"0": data}, byte_order=order)["w"] == right[0]


def test_bytes_of_bools_become_0_and_1(tmp_path: Path) -> None:
    tree = {"w": tensor((4,), (1,), "BoolStorage")}
    found = read(tmp_path, tree, {"0": b"\7\0\1\xff"})["w"]
    assert found.view("u1").tolist() == [1, 0, 1, 1]
    head = json.dumps({"w": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"\7\0\1\xff")
    assert get(path)["w"].numpy().view("u1").tolist() == [1, 0, 1, 1]


def test_files_without_checksums(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read(tmp_path, {"w": MATRIX}, checksums=False)["w"], W)


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({"a": MATRIX, "b": {"c": MATRIX, 3: MATRIX}}, ["a", "b.c", "b.3"]),
        ([MATRIX, (MATRIX,)], ["0", "1.0"]),
        ({"a": (MATRIX, 5, [MATRIX])}, ["a.0", "a.2.0"]),
        ({"epoch": 3, "state_dict": {"a.w": MATRIX}}, ["a.w"]),
        ({"model": {"w": MATRIX}, "head": MATRIX}, ["w", "head"]),
        ({"model": {"width": 3}, "w": MATRIX}, ["w"]),
        ({"module": {"w": MATRIX}, "optimizer": {"state": {0: MATRIX}}, "ema": [VECTOR]},
         ["w", "ema.0"]),
        ({"w": MATRIX, "optimizer": MATRIX}, ["w", "optimizer"]),
        ({"a": {"b": MATRIX}, "a.b": MATRIX}, ["a.b"]),
        ({"w": MATRIX, "step": called("numpy.core.multiarray", "scalar", 3), "none": None}, ["w"]),
        ({"w": MATRIX, "args": Raw(glob("argparse", "Namespace") + b")\x81}(" + pickled("lr")
          + pickled(0.5) + b"ub")}, ["w"]),
        ({"w": Raw(torch_files.HOOKS + b"(" + pickled("x") + MATRIX + b"u}(" + pickled("_metadata")
          + b"}ub")}, ["w.x"]),
    ],
)  # fmt: skip
def test_names(tree: Any, names: list[str], tmp_path: Path) -> None:
    assert list(read(tmp_path, tree)) == names


@pytest.mark.parametrize(
    "tree",
    [{"a": {"b": MATRIX}, "a.b": VECTOR}, {1: MATRIX, "1": VECTOR},
     {"model": {"w": MATRIX}, "w": VECTOR}],
)  # fmt: skip
def test_names_that_join_to_one_are_refused(tree: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"two tensors with the name '(a\.b|1|w)'"):
        read(tmp_path, tree)


OTHERS = {
    "int16": tensor((6,), (1,), "ShortStorage"),
    "complex64": tensor((3,), (1,), "ComplexFloatStorage"),
    "qint8": tensor((3,), (1,), "QInt8Storage"),
    **{
        dtype: tensor((6,), (1,), "storage.UntypedStorage", count=24, dtype=dtype)
        for dtype in ("float8_e4m3fn", "float4_e2m1fn_x2", "uint16", "uint64", "bits1x8", "int4")
    },
    "a sparse tensor": called("torch._utils", "_rebuild_sparse_tensor",
                              glob("torch", "sparse_coo"), (MATRIX, VECTOR, (2, 3))),
    "a quantized tensor": called("torch._utils", "_rebuild_qtensor", 1, 2),
    "a numpy array": called("numpy.core.multiarray", "_reconstruct", glob("numpy", "ndarray")),
    "the metadata 'zero'": tensor((6,), (1,), metadata={"zero": True}),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_tensors_that_flow_cannot_read_are_listed(what: str, tmp_path: Path) -> None:
    path = Saved({"w": MATRIX, "other": OTHERS[what]}, DATA).write(tmp_path / "m.pt")
    found = get(path)
    assert list(found) == ["w", "other"]
    np.testing.assert_array_equal(found["w"].numpy(), W)
    assert what in repr(found["other"])
    for access in (lambda: found["other"].numpy(), lambda: found["other"].shape):
        with pytest.raises(UnsupportedError, match=f"'other' of .*m.pt .*{__file__}.*\n.*{what}"):
            access()


# ----------------------------------------------------------------------------------------- refusal


def shared(levels: int, leaf: Any) -> Raw:
    """A dict of two entries that are one dict, and so on: 2**levels paths."""
    out = pickled({"t": leaf}) + b"q\1"
    for _ in range(levels):
        out += b"0}(" + pickled("a") + b"h\1" + pickled("b") + b"h\1uq\1"
    return Raw(out)


BAD: dict[str, tuple[Any, str]] = {
    "shared": (shared(60, MATRIX), "parts are shared"),
    "deep": (Raw(b"}" + (pickled("a") + b"}") * 50_000 + b"s" * 50_000), "100 levels"),
    "cyclic": (Raw(b"}q\1" + pickled("a") + b"h\1s"), "within itself"),
    "deep lists": (Raw(b"]" * 200_000 + b"a" * 199_999), "100 levels"),
    "a call": (called("os", "system", "true"), r"os\.system(.|\n)*state_dict"),
    "BUILD of a function": (Raw(glob("os", "system") + b"}b"), r"os\.system"),
    "a large memo": (Raw(b"]r\xff\xff\xff\x7fj\0\0\0\1"), "damaged pickle"),
    "text of 2**60 bytes": (Raw(b"\x8d" + (1 << 60).to_bytes(8, "little")), "ends at byte"),
    "a protocol 0": (Raw(b"(lp0\nI1\na"), "opcode b'l'"),
    "no value": (Raw(b"(((("), "damaged pickle"),
    "a pid": (Raw(pickled(5) + b"Q"), "a record of five parts"),
    "a storage": (
        Raw(pickled(("storage", glob("torch", "Size"), "0", "cpu", 1)) + b"Q"),
        "class 'torch Size'",
    ),
    "negative count": (tensor((0,), (1,), count=-3), "-3 elements"),
    "huge size": (tensor((10**30, 0), (1, 1), count=1), "64 bits as offset, size or stride"),
    "huge product": (tensor((2**40, 2**40, 0), (0, 0, 0)), "outside of its storage"),
    "huge offset": (tensor((0,), (1,), offset=10**30, count=1), "more than 64 bits"),
    "stride": (tensor((6,), (-1,), count=6), "-1 as offset, size or stride"),
    "text as size": (Raw(VECTOR.replace(pickled((6,)), pickled(("6",)))), "'6' as offset"),
    "ranks": (Raw(VECTOR.replace(pickled((1,)), pickled(()))), "1 axes and 0 strides"),
    "outside": (tensor((6,), (1,), offset=1, count=6), "outside of its storage"),
    "65 axes": (tensor((1,) * 65, (1,) * 65), "65 axes"),
    "expanded": (tensor((2**20, 2**9), (0, 0)), "much larger than the file"),
    "many expanded": ([tensor((2**20,), (0,))] * 30, "much larger than the file"),
    "short storage": (tensor((7,), (1,)), "24 bytes of '' instead of 28"),
    "no storage": (tensor((6,), (1,), key="1"), "no file 'archive/data/1'"),
    "storage path": (tensor((6,), (1,), key="../data.pkl"), "no file"),
    "negated bool": (tensor((6,), (1,), "BoolStorage", metadata={"neg": True}), "negated"),
    "a surrogate": ({"a\ud800": MATRIX}, "the name"),
    "a tuple as a key": ({(1, 2): MATRIX}, "neither text nor a number"),
    "a class within a class": (
        called("torch._tensor", "_rebuild_from_type_v2",
               glob("torch._tensor", "_rebuild_from_type_v2"), 1, (), 1),
        "within another",
    ),
    "SETITEMS of a list": (Raw(b"](" + pickled(1) * 2 + b"u"), "entries for a value"),
    "odd SETITEMS": (Raw(b"}(" + pickled(1) + b"u"), "damaged pickle"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_pickles_are_refused_within_bounds(case: str, tmp_path: Path) -> None:
    tree, text = BAD[case]
    path = Saved(tree, DATA).write(tmp_path / "m.pt")
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=text) as found:
            {name: v.numpy() for name, v in get(path).items()}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"reading {path} (at {__file__}:" in str(found.value)
    assert peak < 100 << 20
    assert time.process_time() - began < 30  # quadratic reading takes minutes


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pickle, "MOST_STEPS", 1000)
    with pytest.raises(CheckpointError, match="more than 1000 opcodes"):
        read(tmp_path, Raw(b"N0" * 1000 + b"}"))
    monkeypatch.setattr(torch_format, "LONGEST_PICKLE", 50)
    with pytest.raises(CheckpointError, match=r"bytes of 'archive/data\.pkl', more than 50"):
        read(tmp_path, {"w": MATRIX})
    monkeypatch.undo()
    monkeypatch.setattr(torch_format, "MOST_TEXT", 50)
    with pytest.raises(CheckpointError, match="50 characters of names"):
        read(tmp_path, {"x" * 20: [MATRIX] * 3})


def test_nothing_of_the_process_changes(tmp_path: Path) -> None:
    state = Raw(b"N}" + pickled("__defaults__") + pickled((1, 2, 3, 4)) + b"s\x86b")
    names = {"_rebuild_tensor_v2": torch_pickle._tensor, "_rebuild_parameter": torch_pickle._first}
    before = {name: (f.__defaults__, f.__kwdefaults__) for name, f in names.items()}
    for name in names:
        read(tmp_path, Raw(glob("torch._utils", name) + state))
    assert before == {name: (f.__defaults__, f.__kwdefaults__) for name, f in names.items()}


ARCHIVES: dict[str, tuple[dict[str, Any], str]] = {
    "encrypted": ({"name": "data.pkl", "flags": 1}, "compressed or encrypted"),
    "encrypted data": ({"name": "data/0", "flags": 1}, "compressed or encrypted"),
    "method 99": ({"name": "data/0", "method": 99}, "compressed or encrypted"),
    "deflated": ({"name": "data/0", "method": 8}, "compressed or encrypted"),
    "checksum": ({"name": "data/0", "crc": 1}, "differ from those saved"),
    "checksum of the pickle": ({"name": "data.pkl", "crc": 1}, "differ from those saved"),
    "sizes": ({"name": "data/0", "size": 2**31}, "2147483648 bytes"),
    "both sizes": ({"name": "data/0", "size": 2**31, "packed": 2**31}, "2147483648 bytes"),
    "shorter": ({"name": "data/0", "size": 8, "packed": 8}, "8 bytes of 'w' instead of 24"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_bad_archives_are_refused(case: str, tmp_path: Path) -> None:
    fields, text = ARCHIVES[case]
    path = tmp_path / "m.pt"
    path.write_bytes(torch_files.patched(Saved({"w": MATRIX}, DATA).data(), **fields))
    with pytest.raises(CheckpointError, match=text) as found:
        get(path)["w"].numpy()
    assert f"(at {__file__}:" in str(found.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "zip file"),
        (b"\x80\x02", "zip file(.|\n)*before 1.6"),
        (Saved({"w": MATRIX}, {"0": bytes(1 << 20)}, compressed=True).data(), "compressed"),
        (Saved({"w": MATRIX}, DATA, byte_order=b"middle").data(), "byte order b'middle'"),
        (Saved({"w": MATRIX}, DATA, byte_order=bytes(100)).data(), "100 bytes"),
        (Saved({"w": MATRIX}, {**DATA, "x/data.pkl": b""}).data(), "2 files data.pkl"),
    ],
)
def test_other_files_are_refused(data: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=text):
        get(path)["w"].numpy()


def test_a_file_that_is_replaced_after_it_was_opened(tmp_path: Path) -> None:
    path = Saved({"w": MATRIX}, DATA).write(tmp_path / "m.pt")
    found = get(path)
    path.unlink()
    Saved({"w": MATRIX}, {"0": bytes(24)}).write(path)
    with pytest.raises(CheckpointReplacedError):
        found["w"].numpy()


def test_a_part_of_a_storage_is_read_alone_once_it_is_verified(tmp_path: Path) -> None:
    tree = {f"w{i}": tensor((2,), (1,), offset=2 * i, count=6) for i in range(3)}
    path = Saved(tree, DATA).write(tmp_path / "m.pt")
    found = torch_format.read(path)
    for i in range(3):
        np.testing.assert_array_equal(found[f"w{i}"], FLAT[2 * i : 2 * i + 2])
    damaged = torch_files.patched(path.read_bytes(), "data/0", crc=7)
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="differ"):
        torch_format.read(path)["w1"]


def test_python_pickles_of_later_protocols(tmp_path: Path) -> None:
    plain = {"text": "é", "bytes": b"x" * 300, "set": {1, 2}, "n": [1.5, -7, 2**70, None, ()]}
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps(plain, protocol)
        entries = torch_pickle.interpret(data)
        assert isinstance(entries, torch_pickle.Pairs)
        assert entries[0] == ("text", "é")
        assert entries[-1] == ("n", plain["n"])
        assert list(read(tmp_path, {"w": MATRIX, "state": Raw(data[2:-1])})) == ["w"]
