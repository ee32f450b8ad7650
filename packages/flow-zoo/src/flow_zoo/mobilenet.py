"""MobileNet v2 (Sandler et al., 2018, arXiv:1801.04381), as in torchvision."""

from __future__ import annotations

import oneflow as flow
from flow_zoo.common import BATCH_NORM, Published, check_images, renamed

CONVOLUTION = flow.variance_scaling_initializer(2.0, "fan_out", "random_normal", "NCHW")
CLASSES = flow.random_normal_initializer(stddev=0.01)

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Table 2 of the paper: expansion, channels, blocks, and the stride of the first block."""

WEIGHTS = Published(
    {
        r".*\.num_batches_tracked": None,
        # The first block has no expansion, so the published indices of its other layers are lower.
        **renamed(
            r"features\.\d+\.1|features\.1\.conv\.(?:0\.1|2)|features\.\d+\.conv\.(?:[01]\.1|3)",
            BATCH_NORM,
        ),
        r"(.*)\.(weight|bias)": r"\1-\2",
    },
    head=r"classifier\.1",
)


def mobilenet_v2(
    images: flow.Blob,
    classes: int = 1000,
    dropout: float = 0.2,
    training: bool = True,
    name: str = "mobilenet_v2",
) -> flow.BlobDef:
    """Return the scores of classes of images.

    Args:
        images: floating-point, shape (batch, 3, height, width).
        classes: the number of classes.
        dropout: the rate at which features are dropped in train jobs.
        training: whether batch norms use the statistics of the batch in train jobs.
        name: name of the network, with which the names of its variables begin.

    Returns:
        Scores of shape (batch, classes), the logarithms of probabilities up to a constant.

    Raises:
        InferenceError: the images have another shape.
    """
    check_images("mobilenet_v2", images)
    with flow.scope.namespace(name):
        x = _convolution(images, 32, 3, 2, 1, training, ("features.0.0", "features.0.1"))
        x = flow.nn.relu6(x)
        number = 1
        for expansion, channels, count, first in STAGES:
            for stride in (first, *[1] * (count - 1)):
                y = _block(x, channels, stride, expansion, training, f"features.{number}.conv")
                x = x + y if stride == 1 and x.shape[1] == channels else y
                number += 1
        names = (f"features.{number}.0", f"features.{number}.1")
        x = flow.nn.relu6(_convolution(x, 1280, 1, 1, 1, training, names))
        x = flow.nn.dropout(flow.math.reduce_mean(x, axis=[2, 3]), dropout)
        return flow.layers.dense(x, classes, kernel_initializer=CLASSES, name="classifier.1")


def _block(
    x: flow.BlobDef, channels: int, stride: int, expansion: int, training: bool, name: str
) -> flow.BlobDef:
    """Expand the channels, convolve each of them alone, and combine them."""
    wide, number = expansion * x.shape[1], 0
    if expansion > 1:
        names = (f"{name}.0.0", f"{name}.0.1")
        x, number = flow.nn.relu6(_convolution(x, wide, 1, 1, 1, training, names)), 1
    names = (f"{name}.{number}.0", f"{name}.{number}.1")
    x = flow.nn.relu6(_convolution(x, wide, 3, stride, wide, training, names))
    names = (f"{name}.{number + 1}", f"{name}.{number + 2}")
    return _convolution(x, channels, 1, 1, 1, training, names)


def _convolution(
    x: flow.Blob,
    filters: int,
    size: int,
    stride: int,
    groups: int,
    training: bool,
    names: tuple[str, str],
) -> flow.BlobDef:
    """Apply a convolution and a batch norm of these names."""
    x = flow.layers.conv2d(
        x, filters, size, stride, size // 2, groups=groups, use_bias=False,
        kernel_initializer=CONVOLUTION, name=names[0],
    )  # fmt: skip
    return flow.layers.batch_normalization(
        x, axis=1, momentum=0.9, epsilon=1e-5, training=training, name=names[1]
    )
