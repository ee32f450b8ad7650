"""The vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929), as in torchvision."""

from __future__ import annotations

from dataclasses import dataclass

import oneflow as flow
from flow_zoo.common import LAYER_NORM, Published, check, check_config, check_images, renamed

WEIGHT = flow.xavier_uniform_initializer()
PATCHES = flow.variance_scaling_initializer(1.0, "fan_in", "truncated_normal", "NCHW")
PLACES = flow.random_normal_initializer(stddev=0.02)
ZEROS = flow.zeros_initializer()


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of a vision transformer.

    Attributes:
        patch: the height and width of a patch, in pixels.
        width: the number of features of a patch.
        layers: the number of blocks.
        heads: the number of heads of each attention.
        hidden: the number of features between the two dense layers of a block.
        dropout: the rate at which features are dropped in train jobs.
        epsilon: what layer norms add to the variance; 1e-12 for weights of Hugging Face.
    """

    patch: int
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    dropout: float = 0.0
    epsilon: float = 1e-6


VIT_B_16 = ViTConfig(16)
VIT_B_32 = ViTConfig(32)
VIT_L_16 = ViTConfig(16, width=1024, layers=24, heads=16, hidden=4096)
VIT_L_32 = ViTConfig(32, width=1024, layers=24, heads=16, hidden=4096)

BLOCK = r"(encoder\.layers\.encoder_layer_\d+)"
ATTENTION = rf"{BLOCK}\.self_attention"

OTHER, LAYER = r"(?:vit\.)?", r"(?:vit\.)?encoder\.layer\.(\d+)"
OWN = r"encoder.layers.encoder_layer_\1"

HUGGING_FACE = {
    rf"{OTHER}embeddings\.cls_token": "class_token",
    rf"{OTHER}embeddings\.position_embeddings": "encoder.pos_embedding",
    rf"{OTHER}embeddings\.patch_embeddings\.projection\.(weight|bias)": r"conv_proj-\1",
    rf"{LAYER}\.attention\.attention\.(query|key|value)\.(weight|bias)": (
        rf"{OWN}.self_attention-\2-\3"
    ),
    rf"{LAYER}\.attention\.output\.dense\.(weight|bias)": rf"{OWN}.self_attention-out-\2",
    rf"{LAYER}\.intermediate\.dense\.(weight|bias)": rf"{OWN}.mlp.0-\2",
    rf"{LAYER}\.output\.dense\.(weight|bias)": rf"{OWN}.mlp.3-\2",
    rf"{LAYER}\.layernorm_before\.weight": rf"{OWN}.ln_1-gamma",
    rf"{LAYER}\.layernorm_before\.bias": rf"{OWN}.ln_1-beta",
    rf"{LAYER}\.layernorm_after\.weight": rf"{OWN}.ln_2-gamma",
    rf"{LAYER}\.layernorm_after\.bias": rf"{OWN}.ln_2-beta",
    rf"{OTHER}layernorm\.weight": "encoder.ln-gamma",
    rf"{OTHER}layernorm\.bias": "encoder.ln-beta",
    r"classifier\.(weight|bias)": r"heads.head-\1",
}
"""The rules for files of Hugging Face, whose names of layers differ from torchvision's."""

WEIGHTS = Published(
    {
        **HUGGING_FACE,
        r"class_token|encoder\.pos_embedding": r"\g<0>",
        **renamed(r".*\.ln(?:_[12])?", LAYER_NORM),
        **{
            rf"{ATTENTION}\.in_proj_{kind}": flow.weights.Rule(
                [rf"\1.self_attention-{part}-{kind}" for part in ("query", "key", "value")], split=0
            )
            for kind in ("weight", "bias")
        },
        rf"{ATTENTION}\.out_proj\.(weight|bias)": r"\1.self_attention-out-\2",
        rf"{BLOCK}\.mlp\.(?:0|linear_1)\.(weight|bias)": r"\1.mlp.0-\2",
        rf"{BLOCK}\.mlp\.(?:3|linear_2)\.(weight|bias)": r"\1.mlp.3-\2",
        r"(.*)\.(weight|bias)": r"\1-\2",
    },
    head=r"(?:heads\.head|classifier)",
)


def vit(
    images: flow.Blob, config: ViTConfig = VIT_B_16, classes: int = 1000, name: str = "vit"
) -> flow.BlobDef:
    """Return the scores of classes of images.

    Args:
        images: floating-point, shape (batch, 3, height, width); published weights are for images of
            224 x 224 pixels.
        config: the sizes.
        classes: the number of classes.
        name: name of the network, with which the names of its variables begin.

    Returns:
        Scores of shape (batch, classes), the logarithms of probabilities up to a constant.

    Raises:
        InferenceError: the images have another shape, or do not consist of whole patches.
    """
    check_config("vit", config, ViTConfig)
    check_images("vit", images)
    patch, width = config.patch, config.width
    rows, columns = images.shape[2:]
    found, allowed = f"images of {rows} x {columns} pixels", f"multiples of the patch, {patch}"
    check(rows % patch == columns % patch == 0, "vit", found, allowed)
    with flow.scope.namespace(name):
        x = flow.layers.conv2d(
            images, width, patch, patch, kernel_initializer=PATCHES, name="conv_proj"
        )
        x = flow.transpose(flow.reshape(x, (x.shape[0], width, -1)), (0, 2, 1))
        token = flow.get_variable("class_token", (1, 1, width), x.dtype, ZEROS)
        x = flow.concat([flow.broadcast_like(token, x[:, :1]), x], axis=1)
        places = (1, x.shape[1], width)
        x = x + flow.get_variable("encoder.pos_embedding", places, x.dtype, PLACES)
        x = flow.nn.dropout(x, config.dropout)
        for i in range(config.layers):
            x = _block(x, config, f"encoder.layers.encoder_layer_{i}")
        x = _norm(x, config, "encoder.ln")
        return flow.layers.dense(x[:, 0], classes, name="heads.head")


def _block(x: flow.BlobDef, config: ViTConfig, name: str) -> flow.BlobDef:
    y = flow.layers.multi_head_attention(
        _norm(x, config, f"{name}.ln_1"), config.heads, dropout_rate=config.dropout,
        name=f"{name}.self_attention",
    )  # fmt: skip
    x = x + flow.nn.dropout(y, config.dropout)
    y = flow.layers.dense(
        _norm(x, config, f"{name}.ln_2"), config.hidden, flow.math.gelu, kernel_initializer=WEIGHT,
        name=f"{name}.mlp.0",
    )  # fmt: skip
    y = flow.nn.dropout(y, config.dropout)
    y = flow.layers.dense(y, config.width, kernel_initializer=WEIGHT, name=f"{name}.mlp.3")
    return x + flow.nn.dropout(y, config.dropout)


def _norm(x: flow.BlobDef, config: ViTConfig, name: str) -> flow.BlobDef:
    return flow.layers.layer_norm(x, begin_norm_axis=2, epsilon=config.epsilon, name=name)
