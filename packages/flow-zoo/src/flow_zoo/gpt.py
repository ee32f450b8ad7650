"""GPT-2 (Radford et al., 2019), as in Hugging Face's transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import oneflow as flow
from flow_zoo.common import LAYER_NORM, Published, check_config, check_tokens, renamed


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of GPT-2.

    Attributes:
        vocabulary: the number of different tokens.
        positions: the largest length of a sequence.
        width: the number of features of a position.
        layers: the number of blocks.
        heads: the number of heads of each attention.
        dropout: the rate at which features are dropped in train jobs.
        stddev: the standard deviation of the first weights.
    """

    vocabulary: int = 50257
    positions: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12
    dropout: float = 0.1
    stddev: float = 0.02


GPT2 = GPT2Config()
GPT2_MEDIUM = GPT2Config(width=1024, layers=24, heads=16)
GPT2_LARGE = GPT2Config(width=1280, layers=36, heads=20)
GPT2_XL = GPT2Config(width=1600, layers=48, heads=25)

PREFIX = r"(?:transformer\.)?"
TURNED, QKV = (1, 0), ("query", "key", "value")
"""The published dense layers, called Conv1D, have weights of shape (inputs, outputs)."""

WEIGHTS = Published(
    {
        r"lm_head\.weight": None,  # a copy of the table of words
        rf"{PREFIX}h\.\d+\.attn\.(?:masked_)?bias": None,  # constants, not weights
        **renamed(r".*ln_[12f]", LAYER_NORM, PREFIX),
        rf"{PREFIX}(h\.\d+\.attn)\.c_attn\.weight": flow.weights.Rule(
            [rf"\1-{part}-weight" for part in QKV], TURNED, split=0
        ),
        rf"{PREFIX}(h\.\d+\.attn)\.c_attn\.bias": flow.weights.Rule(
            [rf"\1-{part}-bias" for part in QKV], split=0
        ),
        rf"{PREFIX}(h\.\d+\.attn)\.c_proj\.weight": flow.weights.Rule(r"\1-out-weight", TURNED),
        rf"{PREFIX}(h\.\d+\.attn)\.c_proj\.bias": r"\1-out-bias",
        rf"{PREFIX}(h\.\d+\.mlp\.c_\w+)\.weight": flow.weights.Rule(r"\1-weight", TURNED),
        rf"{PREFIX}(.*)\.(weight|bias)": r"\1-\2",
    }
)


def gpt2(tokens: flow.Blob, config: GPT2Config = GPT2, name: str = "gpt2") -> flow.BlobDef:
    """Return the scores of the token that follows each position.

    Args:
        tokens: integers, shape (batch, length).
        config: the sizes.
        name: name of the network, with which the names of its variables begin.

    Returns:
        Scores of shape (batch, length, config.vocabulary), the logarithms of probabilities up to a
        constant; those of a position depend on tokens up to this position.

    Raises:
        InferenceError: the tokens have another shape, or are more than ``config.positions``.
    """
    check_config("gpt2", config, GPT2Config)
    check_tokens("gpt2", tokens, config.positions)
    width, start = config.width, flow.random_normal_initializer(stddev=config.stddev)
    with flow.scope.namespace(name):
        words = flow.get_variable("wte-weight", (config.vocabulary, width), None, start)
        places = flow.get_variable("wpe-weight", (config.positions, width), None, start)
        x = flow.gather(words, tokens) + places[: tokens.shape[1]]
        x = flow.nn.dropout(x, config.dropout)
        for i in range(config.layers):
            x = _block(x, config, f"h.{i}")
        return flow.matmul(_norm(x, "ln_f"), words, transpose_b=True)


def _block(x: flow.BlobDef, config: GPT2Config, name: str) -> flow.BlobDef:
    start = flow.random_normal_initializer(stddev=config.stddev)
    y = flow.layers.multi_head_attention(
        _norm(x, f"{name}.ln_1"), config.heads, causal=True, dropout_rate=config.dropout,
        kernel_initializer=start, name=f"{name}.attn",
    )  # fmt: skip
    x = x + flow.nn.dropout(y, config.dropout)
    # Scaling by the depth keeps the variance of the sum of all blocks, as in the paper.
    last = flow.random_normal_initializer(stddev=config.stddev / math.sqrt(2 * config.layers))
    y = flow.layers.dense(
        _norm(x, f"{name}.ln_2"), 4 * config.width, _gelu, kernel_initializer=start,
        name=f"{name}.mlp.c_fc",
    )  # fmt: skip
    y = flow.layers.dense(y, config.width, kernel_initializer=last, name=f"{name}.mlp.c_proj")
    return x + flow.nn.dropout(y, config.dropout)


def _norm(x: flow.BlobDef, name: str) -> flow.BlobDef:
    return flow.layers.layer_norm(x, begin_norm_axis=2, name=name)


def _gelu(x: flow.BlobDef) -> flow.BlobDef:
    """Approximate ``flow.math.gelu`` by a tanh (Hendrycks and Gimpel, 2016, arXiv:1606.08415)."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + flow.math.tanh(inner))
