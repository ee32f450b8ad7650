"""From OFRecords to a falling loss: decode, crop, mirror, normalize, a small residual network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_data.codec import encode_jpeg

BATCH = 16


def conv(x: Any, filters: int, name: str, strides: int = 1) -> Any:
    init = flow.variance_scaling_initializer(2.0, "fan_in", "random_normal")
    return flow.layers.conv2d(
        x, filters, 3, strides=strides, padding="SAME", kernel_initializer=init, name=name
    )


def block(x: Any, filters: int, name: str, strides: int) -> Any:
    y = flow.nn.relu(conv(x, filters, name + "_a", strides))
    y = conv(y, filters, name + "_b") * 0.5
    return flow.nn.relu(y + conv(x, filters, name + "_skip", strides))


def make_job(folder: str, devices: int) -> Any:
    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        with flow.scope.placement("gpu", f"0:0-{devices - 1}"):
            records = flow.data.ofrecord_reader(
                folder, BATCH, data_part_num=2, random_shuffle=True, shuffle_buffer_size=32
            )
            image = flow.data.OFRecordImageDecoderRandomCrop(
                records, "encoded", color_space="RGB", random_area=[0.5, 1.0]
            )
            label = flow.data.OFRecordRawDecoder(records, "class/label", shape=(), dtype=flow.int32)
            pixels, _, _ = flow.image.Resize(image, target_size=(16, 16))
            mirror = flow.random.CoinFlip(batch_size=BATCH)
            x = flow.image.CropMirrorNormalize(
                pixels, mirror, color_space="RGB", mean=[120.0] * 3, std=[60.0] * 3
            )
            x = flow.nn.relu(conv(x, 8, "stem"))
            x = block(x, 8, "one", 1)
            x = block(x, 16, "two", 2)
            x = flow.math.reduce_mean(x, axis=[2, 3])
            init = flow.truncated_normal(0.1)
            logits = flow.layers.dense(x, 4, name="out", kernel_initializer=init)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return train


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pictures of four classes: stripes in two directions, two colors."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for part in range(2):
        with flow.data.OFRecordWriter(folder / f"part-{part}") as writer:
            for i in range(40):
                label = (i + part) % 4
                y, x = np.mgrid[:28, :32]
                wave = np.sin((x if label % 2 else y) * 1.2 + rng.uniform(0, 6)) * 60 + 120
                image = np.stack([wave] * 3, 2)
                image[..., 0 if label < 2 else 2] += 60
                image += rng.normal(0, 10, image.shape)
                pixels = np.clip(image, 0, 255).astype(np.uint8)
                writer.write({"encoded": encode_jpeg(pixels), "class/label": label})
    return str(folder)


def losses(folder: str, devices: int, steps: int) -> list[float]:
    with emulated(4):
        train = make_job(folder, devices)
        return [float(train().mean()) for _ in range(steps)]


@pytest.mark.slow
def test_the_loss_is_the_same_on_four_devices(pictures: str) -> None:
    one, four = losses(pictures, 1, 4), losses(pictures, 4, 4)
    np.testing.assert_allclose(one, four, rtol=2e-4)


@pytest.mark.slow
def test_the_loss_falls(pictures: str) -> None:
    found = losses(pictures, 1, 80)
    assert np.mean(found[-10:]) < 0.5 * np.mean(found[:5])
