"""Readers, decoders and image ops inside of jobs: loaders, order, errors, resuming."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from click.testing import CliRunner
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError, InferenceError
from flow_core.sharding.sbp import format_nd_sbp
from flow_core.sharding.topology import Device
from flow_data import codec
from flow_data.cli.commands import data
from flow_data.cli.report import text_report
from flow_data.codec import encode_jpeg
from flow_data.loading.stats import all_stats

COUNT = 23


def picture(i: int) -> Any:
    y, x = np.mgrid[: 30 + i % 5, : 40 - i % 7]
    return np.stack([x * 5, y * 6, np.full_like(x, i * 10)], 2).astype(np.uint8)


@pytest.fixture
def records(tmp_path: Path) -> str:
    for part, numbers in enumerate((range(10), range(10, COUNT))):
        with flow.data.OFRecordWriter(tmp_path / f"part-{part}") as writer:
            for i in numbers:
                image = encode_jpeg(picture(i))
                writer.write({"encoded": image, "label": i, "x": np.arange(3.0) + i})
    return str(tmp_path)


def reader(folder: str, batch: int, **options: Any) -> Any:
    return flow.data.ofrecord_reader(folder, batch_size=batch, data_part_num=2, **options)


def label_job(folder: str, batch: int, devices: int = 1, **options: Any) -> Any:
    @flow.global_function()
    def labels() -> tp.Numpy:
        with flow.scope.placement("cpu", f"0:0-{devices - 1}"):
            found = reader(folder, batch, **options)
            return flow.data.OFRecordRawDecoder(found, "label", shape=(), dtype=flow.int32)

    return labels


def image_job(folder: str, batch: int, devices: int = 1, kind: str = "cpu") -> Any:
    @flow.global_function()
    def images() -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement(kind, f"0:0-{devices - 1}"):
            found = reader(folder, batch, random_shuffle=True, shuffle_buffer_size=8, seed=3)
            label = flow.data.OFRecordRawDecoder(found, "label", shape=(1,), dtype=flow.int32)
            image = flow.data.OFRecordImageDecoderRandomCrop(
                found, "encoded", color_space="RGB", seed=5
            )
            pixels, _, _ = flow.image.Resize(image, target_size=(12, 10))
            mirror = flow.random.CoinFlip(batch_size=batch, seed=7)
            normal = flow.image.CropMirrorNormalize(
                pixels, mirror, color_space="RGB", crop_h=8, crop_w=8, mean=[100.0], std=[50.0]
            )
            return normal + 0.0, label

    return images


def test_samples_come_in_order_epoch_after_epoch(records: str) -> None:
    job = label_job(records, 4)
    found = np.concatenate([job() for _ in range(12)])
    np.testing.assert_array_equal(found, np.arange(48) % COUNT)


def test_shuffled_epochs_are_permutations(records: str) -> None:
    job = label_job(
        records, 1, random_shuffle=True, shuffle_buffer_size=7, shuffle_after_epoch=True
    )
    found = np.concatenate([job() for _ in range(2 * COUNT)])
    first, second = found[:COUNT], found[COUNT:]
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert list(first) != list(second)
    assert list(first) != sorted(first)


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_read_parts_of_the_same_batches(records: str, devices: int) -> None:
    one, several = image_job(records, 8), image_job(records, 8, devices)
    for _ in range(4):
        for a, b in zip(one(), several(), strict=True):
            np.testing.assert_array_equal(a, b)
    names = {t.device for t in several.plan().tasks if t.type == "data_loader"}
    assert names == {Device("cpu", 0, i) for i in range(devices)}


def test_each_device_decodes_its_own_part_of_a_batch(records: str) -> None:
    """Whatever is learned from it, even where whole batches would suit a small matrix."""
    flow.clear_default_session()
    flow.config.machine_num(2)

    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        with flow.scope.placement("cpu", ["0:0", "1:0"]):
            found = reader(records, 4)
            image = flow.data.OFRecordImageDecoder(found, "encoded", color_space="RGB")
            label = flow.data.OFRecordRawDecoder(found, "label", shape=(), dtype=flow.int32)
            sized, _, _ = flow.image.Resize(image, target_size=(32, 32))
            x = flow.image.CropMirrorNormalize(sized, color_space="RGB", output_layout="NHWC")
            logits = flow.layers.dense(flow.reshape(x, (4, -1)), 10, name="out")
            classes = flow.one_hot(label, depth=10, dtype=flow.float)
            loss = flow.nn.softmax_cross_entropy_with_logits(classes, logits)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    layouts = {
        op: [format_nd_sbp(sbp) for sbp in chosen.outputs]
        for op, chosen in train.compile().physical.signatures.items()
        if "decoder" in op or "resize" in op or "Reader" in op
    }
    flow.clear_default_session()
    flow.config.machine_num(1)
    assert len(layouts) == 4
    assert {sbp for found in layouts.values() for sbp in found} == {"S(0)"}, layouts


def test_loaders_feed_devices_of_another_kind(records: str) -> None:
    with emulated(2):
        one, two = image_job(records, 8), image_job(records, 8, 2, "gpu")
        for _ in range(3):
            for a, b in zip(one(), two(), strict=True):
                np.testing.assert_array_equal(a, b)
        kinds = {t.type: t.device.type for t in two.plan().tasks}
    assert (kinds["data_loader"], kinds["scalar_add"]) == ("cpu", "gpu"), kinds


def test_an_image_pipeline_against_numpy(records: str) -> None:
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        found = reader(records, 3)
        image = flow.data.OFRecordImageDecoder(found, "encoded", color_space="RGB")
        numbers = flow.data.OFRecordRawDecoder(found, "x", shape=(3,), dtype=flow.float)
        normal = flow.image.CropMirrorNormalize(
            image, color_space="RGB", crop_h=20, crop_w=16, crop_pos_x=0.0, crop_pos_y=1.0,
            mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0], output_layout="NHWC",
        )  # fmt: skip
        return normal, numbers

    for step in range(2):
        images, numbers = job()
        for row, i in enumerate(range(3 * step, 3 * step + 3)):
            part = picture(i)[-20:, :16].astype(np.float32)
            wanted = (part - [1, 2, 3]) / [4, 5, 6]
            assert np.abs(images[row] - wanted).mean() < 0.5
            np.testing.assert_array_equal(numbers[row], np.arange(3) + i)


def test_the_older_decoder(records: str) -> None:
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        codec = flow.data.ImageCodec([flow.data.ImageResizePreprocessor(12, 10)])
        steps = [
            flow.data.ImagePreprocessor("bgr2rgb"),
            flow.data.NormByChannelPreprocessor([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]),
        ]
        image = flow.data.BlobConf("encoded", (10, 12, 3), flow.float, codec, steps)
        label = flow.data.BlobConf("label", (2,), flow.int32, flow.data.RawCodec(True))
        return flow.data.decode_ofrecord(records, (image, label), batch_size=4, data_part_num=2)

    images, labels = job()
    assert labels.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert images.shape == (4, 10, 12, 3)
    blue = images[..., 2] * 2 + 3
    assert np.abs(blue.mean((1, 2)) - [0, 10, 20, 30]).max() < 4


def test_the_older_decoder_of_single_numbers(records: str) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        label = flow.data.BlobConf("label", (), flow.float, flow.data.RawCodec())
        return flow.data.decode_ofrecord(records, (label,), batch_size=4, data_part_num=2)[0]

    assert job().tolist() == [0, 1, 2, 3]


def test_the_older_decoder_names_an_image_of_another_size(records: str) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        image = flow.data.BlobConf("encoded", (1, 1, 3), flow.float, flow.data.ImageCodec())
        return flow.data.decode_ofrecord(records, (image,), batch_size=4, data_part_num=2)[0]

    with pytest.raises(DataError, match=r"an image \(\d+, \d+, 3\) in 'encoded'"):
        job()


def test_classification_reader_and_ragged_results(records: str) -> None:
    @flow.global_function()
    def job() -> tuple[tp.ListListNumpy, tp.Numpy]:
        image, label = flow.data.ofrecord_image_classification_reader(
            records, "encoded", "label", batch_size=5, data_part_num=2, color_space="RGB"
        )
        return flow.tensor_buffer_to_tensor_list(image, (40, 50, 3), flow.uint8), label

    (images,), labels = job()
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert [x.shape for x in images] == [(1, *picture(i).shape) for i in range(5)]
    kept = [x.copy() for x in images]
    for _ in range(8):
        job()
    for a, b in zip(images, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_decode_random_is_the_same_in_each_step() -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.data.decode_random((3, 2), flow.float, batch_size=4)

    first = job()
    assert first.shape == (4, 3, 2)
    assert 0 < first.min() < first.max() < 1
    np.testing.assert_array_equal(first, job())


# --------------------------------------------------------------------------------- corrupt data


def corrupted(folder: str) -> None:
    with flow.data.OFRecordWriter(Path(folder) / "part-0") as writer:
        for i in range(10):
            image = b"\xff\xd8 no image" if i in (2, 5) else encode_jpeg(picture(i))
            writer.write({"encoded": image, "label": i, "x": np.arange(3.0)})


def pixel_job(folder: str, batch: int, **options: Any) -> Any:
    @flow.global_function()
    def pixels() -> tuple[tp.Numpy, tp.Numpy]:
        found = reader(folder, batch, **options)
        image = flow.data.OFRecordImageDecoder(found, "encoded", color_space="RGB")
        label = flow.data.OFRecordRawDecoder(found, "label", shape=(), dtype=flow.int32)
        return flow.image.Resize(image, target_size=(4, 4))[0], label

    return pixels


def test_a_corrupt_image_says_where_it_is(records: str) -> None:
    corrupted(records)
    job = pixel_job(records, 2)
    assert job()[1].tolist() == [0, 1]
    for _ in range(2):
        with pytest.raises(DataError, match=r"part-0, record 2 at byte \d+"):
            job()


def test_corrupt_images_are_left_out_when_asked(records: str) -> None:
    corrupted(records)
    job = pixel_job(records, 4, on_error="skip")
    assert job()[1].tolist() == [0, 1, 1, 3]
    assert job()[1].tolist() == [4, 4, 6, 7]
    stats = all_stats()[-1]
    assert stats.skipped >= 2
    assert any("record 2 at byte" in message for message in stats.messages)


def test_pictures_that_are_too_large_are_left_out(
    records: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_DATA_MAX_PIXELS", "1290")  # record 9 has 1292, the first nine fewer
    assert pixel_job(records, 10, on_error="skip")()[1].tolist() == [*range(9), 8]
    assert any("38 x 34 pixels" in message for message in _messages())
    with pytest.raises(DataError, match=r"(?s)part-0, record 9 at byte .*38 x 34 pixels"):
        pixel_job(records, 10)()


def _messages() -> list[str]:
    return all_stats()[-1].messages


def test_errors_of_libraries_are_left_out(records: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV's exceptions are of a type of its own, whichever op they come from."""

    class ForeignError(Exception):
        pass

    sound = codec.resize

    def resize(x: Any, *arguments: Any) -> Any:
        if x.shape[0] == 32:
            raise ForeignError("an assertion failed")
        return sound(x, *arguments)

    monkeypatch.setattr(codec, "resize", resize)
    assert pixel_job(records, 4, on_error="skip")()[1].tolist() == [0, 1, 1, 3]
    assert any("an assertion failed" in message for message in _messages())


def test_a_broken_file_is_left_out_from_there(
    records: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(records) / "part-0"
    path.write_bytes(path.read_bytes()[:-5])
    job = label_job(records, 22, on_error="skip")
    assert job().tolist() == [*range(9), *range(10, COUNT)]
    (message,) = all_stats()[-1].broken
    assert "part-0, record 9 at byte" in message
    assert caplog.text.count("skipped the rest of a file") == 1
    assert message in text_report(all_stats())
    with pytest.raises(DataError, match="record 9"):
        label_job(records, 22)()


def test_mistakes_are_named_when_the_job_is_defined(records: str) -> None:

    @flow.global_function()
    def missing() -> tp.Numpy:
        found = flow.data.ofrecord_reader(records, data_part_num=3)
        return flow.data.OFRecordRawDecoder(found, "label", (1,), flow.int32)

    with pytest.raises(DataError, match=r"test_data_jobs.py:(.|\n)*1 of 3 parts missing"):
        missing()
    with pytest.raises(InferenceError, match="on_error"):
        label_job(records, 2, on_error="ignore")()

    @flow.global_function()
    def undecoded() -> tp.Numpy:
        return flow.data.OFRecordRawDecoder(reader(records, 2), "lable", (1,), flow.int32)

    with pytest.raises(DataError, match="did you mean label"):
        undecoded()


# ---------------------------------------------------------------------------- threads and memory


def test_memory_is_bounded_while_nobody_takes_batches(records: str) -> None:
    job = label_job(records, 2)
    job()
    stats = all_stats()[-1]
    assert stats.slots >= 3
    assert sum(stats.levels.values()) == stats.batches == 1


def loaders() -> int:
    return sum(type(o).__name__ == "Loader" for o in gc.get_objects())


@pytest.mark.slow
def test_a_session_that_is_cleared_frees_its_loader(records: str) -> None:
    job = label_job(records, 2)
    job()
    assert loaders()
    flow.clear_default_session()
    del job
    gc.collect()
    assert not loaders()


INTERRUPTED = """
import sys, threading, time
import oneflow as flow
import oneflow.typing as tp
import runpy

job = runpy.run_path(sys.argv[2])["pixel_job"](sys.argv[1], 4, random_shuffle=True)
job()
try:
    print("running", flush=True)
    while True:
        job()
except KeyboardInterrupt:
    job()  # the pipeline still works
    print("interrupted", flush=True)
    if sys.argv[3] == "raise":
        raise RuntimeError("the program's own")
"""


@pytest.mark.slow
@pytest.mark.representative(
    r"\[raise\]", "an error of the program while the loaders end; the other case has none"
)
@pytest.mark.parametrize("ending", ["return", "raise"])
def test_an_interrupted_program_ends(records: str, ending: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, records, __file__, ending]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # as of this module
    with processes.Program(command, env=environment) as program:
        assert program.stdout.readline() == "running\n"
        time.sleep(0.1)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate()
    assert out == "interrupted\n", err
    assert program.returncode == (0 if ending == "return" else 1)
    assert ("the program's own" in err) == (ending == "raise")


STALLING = """
import runpy, sys
job = runpy.run_path(sys.argv[2])["pixel_job"](sys.argv[1], 16)
for _ in range(4):
    job()
{ending}
"""


@pytest.mark.usefixtures("restored_program")
@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("raise KeyboardInterrupt", 130)]
)
def test_stats_of_a_program_however_it_ends(
    records: str, tmp_path: Path, ending: str, code: int
) -> None:
    program, picture = tmp_path / "program.py", tmp_path / "a.svg"
    program.write_text(STALLING.format(ending=ending))
    arguments = ["stats", "--picture", str(picture), str(program), records, __file__]
    done = CliRunner().invoke(data, arguments)
    assert done.exit_code == code, done.output
    for line in ("4 batches", "ofrecord_image_decoder", "steps waited", "batches ready"):
        assert line in done.output
    assert "ofrecord_image_decoder" in picture.read_text()


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.exhaustive
def test_memory_stays_flat_over_ten_epochs_of_ragged_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with flow.data.OFRecordWriter(tmp_path / "part-0") as writer:
        for _ in range(192):
            height, width = rng.integers(50, 500, 2)
            pixels = np.full((height, width, 3), 9, np.uint8)
            writer.write({"encoded": encode_jpeg(pixels)})

    @flow.global_function()
    def job() -> tp.ListListNumpy:
        found = flow.data.ofrecord_reader(str(tmp_path), batch_size=16, random_shuffle=True)
        image = flow.data.OFRecordImageDecoderRandomCrop(found, "encoded")
        return flow.tensor_buffer_to_tensor_list(image, (500, 500, 3), flow.uint8)

    levels = []
    for _ in range(13):
        for _ in range(12):
            job()
        levels.append(resident())
    assert max(levels[3:]) < 1.05 * levels[2], levels


# --------------------------------------------------------------------------------------- resuming

PROGRAM = """
import os, sys, signal
import numpy as np
import oneflow as flow
import oneflow.typing as tp

folder, loaded, saved, devices, steps, kill = sys.argv[1:]

@flow.global_function(type="train")
def train() -> tp.Numpy:
    with flow.scope.placement("cpu", f"0:0-{int(devices) - 1}"):
        found = flow.data.ofrecord_reader(
            folder, batch_size=4, data_part_num=2, random_shuffle=True, shuffle_buffer_size=6,
            shuffle_after_epoch=True,
        )
        label = flow.data.OFRecordRawDecoder(found, "label", shape=(1,), dtype=flow.int32)
        w = flow.get_variable("w", (1, 1), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.matmul(flow.cast(label, flow.float), w))
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [1e-4])
    flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
    return label

if os.path.isdir(loaded):
    flow.load_variables(flow.checkpoint.get(loaded))
for _ in range(int(steps)):
    print(*train().ravel(), flush=True)
flow.checkpoint.save(saved)
for _ in range(int(kill)):
    train()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_program(*arguments: object) -> list[int]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = processes.run(command)
    assert done.returncode in (0, -9), done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_the_order_goes_on_after_a_kill_on_other_devices(records: str, tmp_path: Path) -> None:
    wanted = run_program(records, "-", tmp_path / "all", 1, 14, 0)
    assert sorted(wanted[:COUNT]) == list(range(COUNT))
    found = run_program(records, "-", tmp_path / "a", 1, 4, 1)
    found += run_program(records, tmp_path / "a", tmp_path / "b", 4, 5, 1)
    found += run_program(records, tmp_path / "b", tmp_path / "c", 2, 5, 0)
    assert found == wanted
