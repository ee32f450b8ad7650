"""Residual networks (He et al., 2015, arXiv:1512.03385), as in torchvision.

A bottleneck has its stride at the convolution of size 3, not at the first one as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import oneflow as flow
from flow_zoo.common import BATCH_NORM, Published, check_config, check_images, renamed

CONVOLUTION = flow.variance_scaling_initializer(2.0, "fan_out", "random_normal", "NCHW")
CLASSES = flow.variance_scaling_initializer(1 / 3, "fan_in", "random_uniform")
FILTERS = (64, 128, 256, 512)


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes of a residual network.

    Attributes:
        blocks: the number of blocks of each of the four stages.
        bottleneck: whether a block has convolutions of sizes 1, 3 and 1, of which the last one has
            four times the filters, instead of two of size 3.
    """

    blocks: tuple[int, int, int, int]
    bottleneck: bool


RESNET18 = ResNetConfig((2, 2, 2, 2), bottleneck=False)
RESNET50 = ResNetConfig((3, 4, 6, 3), bottleneck=True)

WEIGHTS = Published(
    {
        r".*\.num_batches_tracked": None,
        **renamed(r".*bn\d|.*\.downsample\.1", BATCH_NORM),
        r"(.*)\.(weight|bias)": r"\1-\2",
    },
    head="fc",
)


def resnet(
    images: flow.Blob,
    config: ResNetConfig,
    classes: int = 1000,
    training: bool = True,
    name: str = "resnet",
) -> flow.BlobDef:
    """Return the scores of classes of images.

    Args:
        images: floating-point, shape (batch, 3, height, width).
        config: the sizes; with 34, 101 and 152 layers, ``blocks`` are (3, 4, 6, 3), (3, 4, 23, 3)
            and (3, 8, 36, 3).
        classes: the number of classes.
        training: whether batch norms use the statistics of the batch in train jobs.
        name: name of the network, with which the names of its variables begin.

    Returns:
        Scores of shape (batch, classes), the logarithms of probabilities up to a constant.

    Raises:
        InferenceError: the images have another shape.
    """
    check_config(name, config, ResNetConfig)
    check_images(name, images)
    with flow.scope.namespace(name):
        x = flow.nn.relu(_convolution(images, 64, 7, 2, training, ("conv1", "bn1")), name="relu")
        x = flow.nn.max_pool2d(x, 3, 2, 1)
        for stage, (count, filters) in enumerate(zip(config.blocks, FILTERS, strict=True), 1):
            for number in range(count):
                stride = 2 if stage > 1 and number == 0 else 1
                block = f"layer{stage}.{number}"
                x = _block(x, filters, stride, config.bottleneck, training, block)
        x = flow.math.reduce_mean(x, axis=[2, 3])
        return flow.layers.dense(x, classes, kernel_initializer=CLASSES, name="fc")


def _block(
    x: flow.BlobDef, filters: int, stride: int, bottleneck: bool, training: bool, name: str
) -> flow.BlobDef:
    """Add convolutions of ``x`` to ``x``, or to a convolution of it where the shape changes."""
    wide = 4 * filters if bottleneck else filters
    three, two = (
        ((filters, 1, 1), (filters, 3, stride), (wide, 1, 1)),
        ((filters, 3, stride), (wide, 3, 1)),
    )
    y = x
    for i, sizes in enumerate(three if bottleneck else two, 1):
        y = y if i == 1 else flow.nn.relu(y, name=f"{name}.relu{i - 1}")
        y = _convolution(y, *sizes, training, (f"{name}.conv{i}", f"{name}.bn{i}"))
    if stride > 1 or x.shape[1] != wide:
        names = (f"{name}.downsample.0", f"{name}.downsample.1")
        x = _convolution(x, wide, 1, stride, training, names)
    return flow.nn.relu(flow.math.add(x, y, name=f"{name}.add"), name=f"{name}.relu")


def _convolution(
    x: flow.Blob, filters: int, size: int, stride: int, training: bool, names: tuple[str, str]
) -> flow.BlobDef:
    """Apply a convolution and a batch norm of these names."""
    x = flow.layers.conv2d(
        x, filters, size, stride, size // 2, use_bias=False, kernel_initializer=CONVOLUTION,
        name=names[0],
    )  # fmt: skip
    return flow.layers.batch_normalization(
        x, axis=1, momentum=0.9, epsilon=1e-5, training=training, name=names[1]
    )


def resnet18(
    images: flow.Blob, classes: int = 1000, training: bool = True, name: str = "resnet18"
) -> flow.BlobDef:
    """Call `resnet` with the sizes of 18 layers, `RESNET18`, and the other arguments."""
    return resnet(images, RESNET18, classes, training, name)


def resnet50(
    images: flow.Blob, classes: int = 1000, training: bool = True, name: str = "resnet50"
) -> flow.BlobDef:
    """Call `resnet` with the sizes of 50 layers, `RESNET50`, and the other arguments."""
    return resnet(images, RESNET50, classes, training, name)
