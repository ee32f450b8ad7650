"""BERT (Devlin et al., 2018, arXiv:1810.04805), as in Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import oneflow as flow
from flow_zoo.common import LAYER_NORM, Published, check_config, check_tokens, renamed


@dataclass(frozen=True)
class BertConfig:
    """Sizes of BERT.

    Attributes:
        vocabulary: the number of different tokens.
        positions: the largest length of a sequence.
        segments: the number of different segments of a sequence.
        width: the number of features of a position.
        layers: the number of blocks.
        heads: the number of heads of each attention.
        hidden: the number of features between the two dense layers of a block.
        dropout: the rate at which features are dropped in train jobs.
        stddev: the standard deviation of the first weights.
    """

    vocabulary: int = 30522
    positions: int = 512
    segments: int = 2
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    dropout: float = 0.1
    stddev: float = 0.02


BERT_BASE = BertConfig()
BERT_LARGE = BertConfig(width=1024, layers=24, heads=16, hidden=4096)

ATTENTION = r"(?:bert\.)?(encoder\.layer\.\d+\.attention)"

WEIGHTS = Published(
    {
        r"(?:bert\.)?embeddings\.position_ids": None,
        r"cls\.predictions\.decoder\..*": None,  # copies of the table of words and of the bias
        r"cls\.predictions\.bias": "cls.predictions-bias",
        **renamed(r".*\.LayerNorm|LayerNorm", LAYER_NORM, r"(?:bert\.)?"),
        rf"{ATTENTION}\.self\.(query|key|value)\.(weight|bias)": r"\1-\2-\3",
        rf"{ATTENTION}\.output\.dense\.(weight|bias)": r"\1-out-\2",
        r"(?:bert\.)?(.*)\.(weight|bias)": r"\1-\2",
    },
    head=r"cls\.predictions",
)


def bert(
    tokens: flow.Blob,
    config: BertConfig = BERT_BASE,
    segments: flow.Blob | None = None,
    mask: flow.Blob | None = None,
    name: str = "bert",
) -> flow.BlobDef:
    """Return the features of each position of sequences.

    Args:
        tokens: integers, shape (batch, length).
        config: the sizes.
        segments: the segment of each position, integers of the shape of ``tokens``; by default all
            are 0.
        mask: integers of the shape of ``tokens``, 0 at positions that are padding; by default there
            are none.
        name: name of the network, with which the names of its variables begin.

    Returns:
        Features of shape (batch, length, config.width).

    Raises:
        InferenceError: the tokens have another shape, or are more than ``config.positions``.
    """
    check_config("bert", config, BertConfig)
    check_tokens("bert", tokens, config.positions)
    with flow.scope.namespace(name):
        places = _table("position", config.positions, config)[: tokens.shape[1]]
        segments = flow.zeros_like(tokens) if segments is None else segments
        kinds = flow.gather(_table("token_type", config.segments, config), segments)
        x = flow.gather(_words(config), tokens) + kinds + places
        x = flow.nn.dropout(_norm(x, "embeddings.LayerNorm"), config.dropout)
        for i in range(config.layers):
            x = _block(x, config, mask, f"encoder.layer.{i}")
        return x


def _table(what: str, rows: int, config: BertConfig) -> flow.BlobDef:
    start = flow.truncated_normal_initializer(stddev=config.stddev)
    name = f"embeddings.{what}_embeddings-weight"
    return flow.get_variable(name, (rows, config.width), None, start)


def _words(config: BertConfig) -> flow.BlobDef:
    """Return the table of words, which the input and the predictions share."""
    return _table("word", config.vocabulary, config)


def _block(x: flow.BlobDef, config: BertConfig, mask: flow.Blob | None, name: str) -> flow.BlobDef:
    start = flow.truncated_normal_initializer(stddev=config.stddev)
    y = flow.layers.multi_head_attention(
        x, config.heads, mask=mask, dropout_rate=config.dropout, kernel_initializer=start,
        name=f"{name}.attention",
    )  # fmt: skip
    x = _norm(x + flow.nn.dropout(y, config.dropout), f"{name}.attention.output.LayerNorm")
    y = _dense(x, config.hidden, config, f"{name}.intermediate.dense", flow.math.gelu)
    y = _dense(y, config.width, config, f"{name}.output.dense")
    return _norm(x + flow.nn.dropout(y, config.dropout), f"{name}.output.LayerNorm")


def _dense(
    x: flow.BlobDef,
    units: int,
    config: BertConfig,
    name: str,
    activation: Callable[..., flow.BlobDef] | None = None,
) -> flow.BlobDef:
    start = flow.truncated_normal_initializer(stddev=config.stddev)
    return flow.layers.dense(x, units, activation, kernel_initializer=start, name=name)


def _norm(x: flow.BlobDef, name: str) -> flow.BlobDef:
    return flow.layers.layer_norm(x, begin_norm_axis=len(x.shape) - 1, epsilon=1e-12, name=name)


def bert_pooled(
    features: flow.BlobDef, config: BertConfig = BERT_BASE, name: str = "bert"
) -> flow.BlobDef:
    """Return one row of features for each sequence, computed from its first position.

    Args:
        features: the result of `bert`, shape (batch, length, config.width).
        config: the sizes.
        name: name of the network.

    Returns:
        Features of shape (batch, config.width), between -1 and 1.
    """
    with flow.scope.namespace(name):
        return _dense(features[:, 0], config.width, config, "pooler.dense", flow.math.tanh)


def bert_words(
    features: flow.BlobDef, config: BertConfig = BERT_BASE, name: str = "bert"
) -> flow.BlobDef:
    """Return the scores of all tokens at each position, with which masked words are predicted.

    Args:
        features: the result of `bert` in the same job, or rows of it; shape (..., config.width).
        config: the sizes.
        name: name of the network.

    Returns:
        Scores of shape (..., config.vocabulary).
    """
    with flow.scope.namespace(name):
        layer = "cls.predictions.transform.dense"
        x = _dense(features, config.width, config, layer, flow.math.gelu)
        x = _norm(x, "cls.predictions.transform.LayerNorm")
        zeros = flow.zeros_initializer()
        bias = flow.get_variable("cls.predictions-bias", (config.vocabulary,), x.dtype, zeros)
        return flow.matmul(x, _words(config), transpose_b=True) + bias
