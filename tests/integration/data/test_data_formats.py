"""Jobs that read OneRec files and COCO data sets; names of the facade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from onerec_files import example, framed

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError, InferenceError, UnsupportedError
from flow_data import toplevel
from flow_data.codec import encode_jpeg


def test_the_facade_has_the_same_names() -> None:
    assert sorted(flow._FROM_DATA) == sorted(toplevel.__all__)


def onerec_job(files: list[str], batch: int, devices: int = 1, **options: Any) -> Any:
    decoded = {k: options.pop(k) for k in ("is_dynamic", "batch_padding") if k in options}

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", f"0:0-{devices - 1}"):
            found = flow.data.onerec_reader(files, batch, **options)
            pairs = flow.data.OneRecDecoder(found, "x", flow.int32, (2, 2), reshape=(-1, 2))
            row = flow.data.onerec_decoder(found, "row", flow.float, (4,), **decoded)
        return pairs, row

    return job


@pytest.fixture
def onerecs(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "a.onerec", tmp_path / "b.onerec"]
    for part, path in enumerate(paths):
        path.write_bytes(b"".join(onerec(i) for i in range(6 * part, 6 * part + 6)))
    return list(map(str, paths))


def onerec(i: int, length: int = 4) -> bytes:
    x, row = np.arange(4, dtype=np.int32) + i, np.full(length, i, np.float32)
    return framed(example({"x": x, "row": row}))


def test_single_numbers_of_onerec_files(tmp_path: Path) -> None:
    path = tmp_path / "numbers.onerec"
    path.write_bytes(b"".join(framed(example({"n": np.array(i, np.int32)})) for i in range(3)))

    @flow.global_function()
    def job() -> tp.Numpy:
        found = flow.data.onerec_reader([str(path)], 3)
        return flow.data.onerec_decoder(found, "n", flow.int32, ())

    assert job().tolist() == [0, 1, 2]


@pytest.mark.parametrize("devices", [1, 2])
def test_onerec_files(onerecs: list[str], devices: int) -> None:
    job = onerec_job(onerecs, 4, devices)
    for step in range(4):
        pairs, rows = job()
        numbers = (np.arange(4) + 4 * step) % 12
        np.testing.assert_array_equal(rows, np.repeat(numbers, 4).reshape(4, 4))
        np.testing.assert_array_equal(pairs[:, 1, 1], numbers + 3)


def test_onerec_batches_are_shuffled_as_wholes(onerecs: list[str]) -> None:
    job = onerec_job(onerecs, 3, random_shuffle=True, shuffle_mode="batch", shuffle_buffer_size=4)
    firsts = []
    for _ in range(4):
        first, second, third = job()[1][:, 0].tolist()
        assert (second, third) == (first + 1, first + 2)
        firsts.append(first)
    assert sorted(firsts) == [0, 3, 6, 9]


def test_onerec_tensors_of_other_shapes(onerecs: list[str]) -> None:
    Path(onerecs[0]).write_bytes(onerec(5, 3) + onerec(6))
    wanted = [[5, 5, 5, 0], [6, 6, 6, 6]]
    for options in ({"is_dynamic": True}, {"batch_padding": (-1,)}, {"batch_padding": (4,)}):
        assert onerec_job(onerecs[:1], 2, **options)()[1].tolist() == wanted
    for options in ({}, {"batch_padding": (3,)}):
        with pytest.raises(DataError, match=r"a\.onerec, record [01] at byte"):
            onerec_job(onerecs[:1], 2, **options)()
    with pytest.raises(InferenceError, match="batch_padding"):
        onerec_job(onerecs, 2, batch_padding=(4, 0))()


def annotated(folder: Path) -> str:
    """A data set of four pictures, the second of which is broken."""
    images = [{"id": i, "file_name": f"{i}.jpg", "height": 30, "width": 40} for i in range(4)]
    common = {"category_id": 1, "bbox": [1, 1, 9, 9], "iscrowd": 0, "segmentation": [[1, 1, 9, 9]]}
    things = [{"id": i, "image_id": i, **common} for i in range(4)]
    for i in range(4):
        image = b"\xff\xd8 no image" if i == 1 else encode_jpeg(np.full((30, 40, 3), i, np.uint8))
        (folder / f"{i}.jpg").write_bytes(image)
    path = folder / "annotations.json"
    content = {"images": images, "annotations": things, "categories": [{"id": 1}]}
    path.write_text(json.dumps(content))
    return str(path)


def test_corrupt_pictures_of_coco(tmp_path: Path) -> None:
    path = annotated(tmp_path)

    def job(on_error: str) -> Any:
        @flow.global_function()
        def ids() -> tuple[tp.Numpy, tp.Numpy]:
            image, number, *_ = flow.data.coco_reader(
                path, str(tmp_path), 4, shuffle=False, on_error=on_error
            )
            return flow.image.Resize(flow.image.decode(image), target_size=(4, 4))[0], number

        return ids

    assert job("skip")()[1].tolist() == [0, 0, 2, 3]
    with pytest.raises(DataError) as caught:
        job("raise")()
    assert str(tmp_path / "1.jpg") in "".join(caught.value.__notes__)
    (tmp_path / "2.jpg").unlink()
    assert job("skip")()[1].tolist() == [0, 0, 0, 3]


def test_codecs_fill_messages_that_they_are_given() -> None:
    resize = flow.data.ImageResizePreprocessor(4, 5)
    codec = flow.data.ImageCodec([resize, flow.data.ImagePreprocessor("mirror")])
    message = MagicMock()
    assert codec.to_proto(message) is message
    filled = message.jpeg.preprocess.add()
    assert (filled.resize.width, filled.resize.height) == (4, 5)
    filled.mirror.SetInParent.assert_called_once()
    assert flow.data.RawCodec(True).to_proto(message).raw.auto_zero_padding is True
    flow.data.BytesListCodec().to_proto(message).bytes_list.SetInParent.assert_called_once()
    norm = flow.data.NormByChannelPreprocessor((1.0, 2.0, 3.0)).to_proto(message)
    norm.norm_by_channel_conf.mean_value.extend.assert_called_once_with((1.0, 2.0, 3.0))
    with pytest.raises(UnsupportedError, match=r"ImageCodec\.to_proto"):
        codec.to_proto()
