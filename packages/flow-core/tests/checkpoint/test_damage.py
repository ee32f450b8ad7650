"""Damaged and malformed files raise a typed error quickly, without large allocations."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import CheckpointError, FlowError
from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import load, open_path, safetensors_format, save
from flow_core.checkpoint.layout import LONGEST_META, parse_meta, stored_type
from flow_core.checkpoint.sums import parse_sums, read_sums

needs_safetensors = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None,
    reason="the package safetensors is not installed (an extra of flow-core)",
)
each_path = pytest.mark.parametrize(
    "name", ["model", pytest.param("model.safetensors", marks=needs_safetensors)]
)
SEED = 16


def values() -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    return {
        "deep/weight": rng.normal(size=(40, 30)).astype(np.float32),
        "bias": rng.normal(size=7),
        "step": np.int64(12).reshape(()),
    }


def files(path: Path) -> list[Path]:
    """Return all non-empty files of a checkpoint."""
    found = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sorted(file for file in found if file.stat().st_size)


def flip(file: Path, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)


def check_found(path: Path, file: Path, bit: int) -> None:
    """Check that reading everything detects a flipped bit, and passes once it is restored."""
    flip(file, bit)
    with pytest.raises(CheckpointError):
        {**load(path, FORMATS)}
    flip(file, bit)


@pytest.mark.slow
@each_path
def test_flipped_bits_are_detected(tmp_path: Path, name: str) -> None:
    """300 bits of a folder and 300 of a file; each file of the folder is covered."""
    path, rng = tmp_path / name, random.Random(SEED)
    save(path, values(), FORMATS)
    stored = files(path)
    for number in range(300):
        file = stored[number % len(stored)]
        check_found(path, file, rng.randrange(8 * file.stat().st_size))
    np.testing.assert_array_equal(load(path, FORMATS)["bias"], values()["bias"])


@pytest.mark.exhaustive
@each_path
def test_every_bit_flip_is_detected(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save(path, {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.int8)}, FORMATS)
    for file in files(path):
        for bit in range(8 * file.stat().st_size):
            check_found(path, file, bit)


def test_loading_a_single_variable_verifies_it(tmp_path: Path) -> None:
    save(tmp_path / "model", values())
    folder = tmp_path / "model" / "deep" / "weight"
    assert open_path(folder).numpy().shape == (40, 30)
    flip(folder / "out", 77)
    with pytest.raises(CheckpointError, match="damaged"):
        open_path(folder).numpy()


def test_sha256sum_accepts_the_digest_list(tmp_path: Path) -> None:
    """Lines have the format of coreutils, also for names with a line feed."""
    save(tmp_path / "model", {"a\nb": np.ones(1), "plain": np.ones(2)})
    lines = (tmp_path / "model" / "flow.sha256").read_text().splitlines()
    assert lines[0].startswith("\\")
    assert lines[0].endswith("  a\\nb/meta")
    assert lines[-1].startswith("# ")
    found = read_sums(tmp_path / "model")
    assert found is not None
    assert sorted(found.digests) == ["a\nb/meta", "a\nb/out", "plain/meta", "plain/out"]
    assert set(load(tmp_path / "model")) == {"a\nb", "plain"}


# ------------------------------------------------------------------------ mismatched checkpoints


def test_one_error_lists_all_mismatches(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save(path, {**values(), "gone": np.ones(1), "bad": np.ones(1)})
    (path / "snapshot_done").unlink()
    (path / "gone" / "out").unlink()
    (path / "new").mkdir()
    (path / "new" / "out").write_bytes(b"1234")
    (path / "bad" / "meta").write_text("nonsense")
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    for line in (
        "incomplete no file 'snapshot_done'",
        "foreign    'new' was added after the save",
        "lost       'gone', which flow.sha256 lists",
        "unreadable 'bad': ",
    ):
        assert line in message
    assert "strict=False" in message
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert load(path, strict=False)["step"] == 12
    with pytest.raises(CheckpointError, match="bad"):
        load(path, strict=False)["bad"]


def test_oneflow_checkpoint_loads(tmp_path: Path) -> None:
    """The OneFlow layout: no digests, the marker file, one folder per variable."""
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    (tmp_path / "w").mkdir()
    value.tofile(tmp_path / "w" / "out")
    (tmp_path / "w" / "meta").write_text("shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n")
    (tmp_path / "snapshot_done").touch()
    found = load(tmp_path, FORMATS)
    np.testing.assert_array_equal(found["w"], value)
    (tmp_path / "w" / "out").write_bytes(bytes(24))
    with pytest.raises(CheckpointError, match="another checkpoint"):
        found["w"]


# --------------------------------------------------------------------------- malformed files

Case = tuple[str, Callable[[Path], object]]


def within(seconds: float, mebibytes: int, call: Callable[[], object]) -> None:
    """Check that a call raises one of our errors within a time and memory limit."""
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(FlowError):
            call()
        assert time.process_time() - begun < seconds
        assert tracemalloc.get_traced_memory()[1] < mebibytes << 20
    finally:
        tracemalloc.stop()


BAD_METAS: dict[str, bytes] = {
    "not utf-8": b"\xff\xfe\xfd",
    "80,000 fields": b"data_type: kFloat " * 80_000,
    "80,000 sizes": b"shape { " + b"dim: 1 " * 80_000 + b"} data_type: 2",
    "spaces": b" " * 60_000,
    "a number of 5,000 digits": b"shape { dim: " + b"9" * 5_000 + b" } data_type: 2",
    "a number of another script": "shape { dim: ٣ } data_type: 2".encode(),
    "more bytes than there are numbers": b"shape { dim: 4611686018427387904 } data_type: 2",
    "a field twice": b"shape { dim: 2 } shape { dim: 3 } data_type: 2",
    "axes that numpy lacks": b"shape { " + b"dim: 1 " * 65 + b"} data_type: 2",
    "an empty size beside a huge one": b"shape { dim: 0 dim: 9223372036854775807 dim: 9 } "
    b"data_type: 2",
    "a terabyte": b"shape { dim: 274877906944 } data_type: 2",
}


@pytest.mark.parametrize("case", BAD_METAS)
def test_malformed_meta(tmp_path: Path, case: str) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "out").write_bytes(bytes(8))
    (tmp_path / "w" / "meta").write_bytes(BAD_METAS[case])
    (tmp_path / "snapshot_done").touch()
    within(1.0, 32, lambda: load(tmp_path)["w"])


def test_longest_meta_is_accepted() -> None:
    with pytest.raises(CheckpointError):
        parse_meta(" " * LONGEST_META + "x", Path("meta"))


def mutated(raw: bytes, number: int) -> Iterator[bytes]:
    """Yield ``raw`` with pieces changed, removed and repeated, reproducibly per number."""
    rng = random.Random(SEED)
    for _ in range(number):
        at, length = rng.randrange(len(raw)), rng.choice((1, 1, 2, 8, 64))
        with_bytes = rng.choice((rng.randbytes(length), b"", raw[at : at + length] * 2, b"9" * 20))
        yield raw[:at] + with_bytes + raw[at + length :]


META = b"shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n"


def outcome(call: Callable[[], object]) -> str:
    """Return "fine" or "refused"; any other exception propagates."""
    try:
        call()
    except CheckpointError:
        return "refused"
    return "fine"


def test_mutated_metas() -> None:
    seen = {outcome(lambda raw=raw: parse_meta(raw, Path("m"))) for raw in mutated(META, 3000)}
    assert seen == {"fine", "refused"}


def header(tensors: object, data: bytes = b"", raw: bytes | None = None) -> bytes:
    raw = json.dumps(tensors).encode() if raw is None else raw
    return len(raw).to_bytes(8, "little") + raw + data


def tensor(shape: Any, *offsets: Any, dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


BAD_FILES: dict[str, bytes] = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "a header of 2^63 bytes": (1 << 63).to_bytes(8, "little") + b"{}",
    "nested lists": header(None, raw=b"[" * 100_000),
    "not utf-8": header(None, raw=b'{"\xff": 1}'),
    "a surrogate": header(
        None, raw=b'{"\\ud800": {"dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    ),
    "a list": header([1]),
    "a number of 5,000 digits": header(None, raw=b'{"w": ' + b"9" * 5_000 + b"}"),
    "metadata of numbers": header({"__metadata__": {"a": 1}}),
    "a name twice": header(None, raw=b'{"w": {}, "w": {}}'),
    "a shape of text": header({"w": tensor("ab", 0, 4)}, bytes(4)),
    "a shape of truths": header({"w": tensor([True], 0, 4)}, bytes(4)),
    "a negative size": header({"w": tensor([-1, -1], 0, 4)}, bytes(4)),
    "three offsets": header({"w": tensor([1], 0, 4, 4)}, bytes(4)),
    "offsets behind the end": header({"w": tensor([2], 0, 8)}, bytes(4)),
    "a hole": header({"w": tensor([1], 4, 8)}, bytes(8)),
    "an overlap": header({"a": tensor([1], 0, 4), "b": tensor([1], 0, 4)}, bytes(8)),
    "one more field": header({"w": tensor([1], 0, 4, more=1)}, bytes(4)),
    "a terabyte": header({"w": tensor([1 << 38], 0, 4)}, bytes(4)),
    "more bytes than there are numbers": header({"w": tensor([1 << 62, 0], 0, 4)}, bytes(4)),
    "65 axes": header({"w": tensor([1] * 65, 0, 4)}, bytes(4)),
    "an unknown type": header({"w": tensor([1], 0, 4, dtype="F4")}, bytes(4)),
    "an object": header({"w": tensor([1], 0, 8, dtype="tensor_buffer")}, bytes(8)),
    "half of the digests": header(
        {"__metadata__": {"flow.version": "1"}, "w": tensor([1], 0, 4)}, bytes(4)
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_malformed_safetensors(tmp_path: Path, case: str) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(BAD_FILES[case])
    within(1.0, 32, lambda: {**load(file, FORMATS)})


@needs_safetensors
def test_mutated_safetensors(tmp_path: Path) -> None:
    """Whatever the safetensors package rejects as damaged is rejected here, too."""
    import safetensors.numpy

    file = tmp_path / "m.safetensors"
    good = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.int8)}
    raw = safetensors.numpy.save(good, {"by": "another program"})
    for changed in mutated(raw, 1000):
        file.write_bytes(changed)
        if outcome(lambda: {**safetensors_format.read(file)}) == "fine":
            assert {**safetensors.numpy.load(changed)}.keys() == safetensors_format.read(
                file
            ).keys()


def test_mutated_sums(tmp_path: Path) -> None:
    save(tmp_path / "model", values())
    raw = (tmp_path / "model" / "flow.sha256").read_bytes()
    for changed in mutated(raw, 1000):
        assert parse_sums(changed) is None or changed == raw


@pytest.mark.parametrize("name", ["../up/out", "/etc/out", "a//out", "a/\0/out"])
def test_digest_list_with_paths_outside_the_folder_is_rejected(name: str) -> None:
    import hashlib

    text = f"{'0' * 64}  {name}\n"
    last = f"# SHA-256 of the lines above: {hashlib.sha256(text.encode()).hexdigest()}\n"
    assert parse_sums((text + last).encode()) is None
    assert parse_sums((text.replace(name, "a/out")).encode()) is None


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
@pytest.mark.parametrize("name", ["w/out", "flow.sha256"])
def test_named_pipe_is_rejected_without_blocking(name: str, tmp_path: Path) -> None:
    save(tmp_path / "model", {"w": np.ones(2, np.int8)})
    if name != "flow.sha256":
        (tmp_path / "model" / "flow.sha256").unlink()
    (tmp_path / "model" / name).unlink()
    os.mkfifo(tmp_path / "model" / name)
    with pytest.raises(CheckpointError):
        {**load(tmp_path / "model", types={"w": stored_type([2], "int8")})}  # type: ignore[dict-item]
    if name == "flow.sha256":
        with pytest.raises(CheckpointError, match="a pipe"):
            open_path(tmp_path / "model" / "w")
