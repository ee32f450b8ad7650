"""Train a small GPT on the characters of Python's own manual, and let it write.

The text is part of Python (``pydoc_data.topics``), so nothing is downloaded.
"""

import math
import sys
from pydoc_data.topics import topics

import matplotlib as mpl
import numpy as np

import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, LENGTH = 1500, 16, 64
WIDTH, HEADS, LAYERS = 64, 4, 2
PICTURE = "char_gpt.png"
INIT = flow.random_normal_initializer(stddev=0.05)

TEXT = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
SYMBOLS = sorted(set(TEXT))
CODES = np.array([SYMBOLS.index(symbol) for symbol in TEXT], np.int32)
HELD_OUT = len(CODES) // 10
"""The last tenth of the text is only used for validation."""


def linear(x, width, name):
    x = flow.reshape(x, (-1, x.shape[-1]))
    return flow.layers.dense(x, width, kernel_initializer=INIT, name=name)


def attention(x, name):
    """Attention of each position to itself and earlier ones; x has shape (batch, length, width)."""
    batch, length, width = x.shape
    heads = flow.reshape(linear(x, 3 * width, f"{name}_qkv"), (batch, length, 3 * HEADS, -1))
    heads = flow.transpose(heads, (0, 2, 1, 3))
    q, k, v = (
        flow.slice(heads, [None, i * HEADS, None, None], [None, HEADS, None, None])
        for i in range(3)
    )
    scores = flow.matmul(q, k, transpose_b=True) * (1 / math.sqrt(width // HEADS))
    scores = flow.math.fused_scale_tril(scores, fill_value=float("-inf"))
    x = flow.transpose(flow.matmul(flow.nn.softmax(scores), v), (0, 2, 1, 3))
    return flow.reshape(
        linear(flow.reshape(x, (-1, width)), width, f"{name}_out"), (batch, length, width)
    )


def model(codes):
    batch, length = codes.shape
    symbols = flow.get_variable("symbols", (len(SYMBOLS), WIDTH), initializer=INIT)
    places = flow.get_variable("places", (length, WIDTH), initializer=INIT)
    x = flow.gather(symbols, codes) + places
    for number in range(LAYERS):
        normal = flow.layers.layer_norm(x, begin_norm_axis=2, name=f"norm{number}_1")
        x = x + attention(normal, f"attention{number}")
        normal = flow.layers.layer_norm(x, begin_norm_axis=2, name=f"norm{number}_2")
        hidden = flow.math.gelu(linear(normal, 4 * WIDTH, f"wide{number}"))
        x = x + flow.reshape(linear(hidden, WIDTH, f"narrow{number}"), x.shape)
    x = flow.layers.layer_norm(x, begin_norm_axis=2, name="norm")
    return flow.reshape(linear(x, len(SYMBOLS), "output"), (batch, length, -1))


PART = tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32)


@flow.global_function(type="train")
def train(codes: PART, following: PART) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(following, model(codes))
    schedule = flow.optimizer.CosineScheduler(3e-3, steps=STEPS)
    flow.optimizer.Adam(schedule, do_bias_correction=True).minimize(loss)
    return loss


@flow.global_function(type="predict")
def validate(codes: PART, following: PART) -> tp.Numpy:
    return flow.nn.sparse_softmax_cross_entropy_with_logits(following, model(codes))


@flow.global_function(type="predict")
def scores(codes: tp.Numpy.Placeholder((1, LENGTH), dtype=flow.int32)) -> tp.Numpy:
    return model(codes)


def draw_batch(codes, rng):
    starts = rng.integers(0, len(codes) - LENGTH, BATCH)
    parts = np.stack([codes[start : start + LENGTH + 1] for start in starts])
    return np.ascontiguousarray(parts[:, :-1]), np.ascontiguousarray(parts[:, 1:])


def write(count, rng):
    """Return text that continues a beginning, symbol by symbol."""
    found = [SYMBOLS.index(symbol) for symbol in b"The "]
    for _ in range(count):
        window = np.zeros((1, LENGTH), np.int32)
        last = found[-LENGTH:]
        window[0, : len(last)] = last
        chances = np.exp(1.5 * scores(window)[0, len(last) - 1].astype(np.float64))
        found.append(rng.choice(len(SYMBOLS), p=chances / chances.sum()))
    return bytes(SYMBOLS[code] for code in found).decode()


def picture(losses, final):
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    axes.plot(np.array(losses) / math.log(2), linewidth=0.8, label="training")
    axes.axhline(final, color="C1", label=f"validation: {final:.2f}")
    axes.set(xlabel="step", ylabel="bits per character", title="GPT on the text of Python's manual")
    axes.legend()
    figure.savefig(PICTURE, dpi=80)


def main():
    rng = np.random.default_rng(0)
    losses = [train(*draw_batch(CODES[:-HELD_OUT], rng)).mean() for _ in range(STEPS)]
    held_out = CODES[-HELD_OUT:]
    final = np.mean([validate(*draw_batch(held_out, rng)).mean() for _ in range(20)]) / math.log(2)
    picture(losses, final)
    print(f"{len(TEXT):,} characters, {STEPS} steps")
    print(write(160, rng))
    print(f"validation: {final:.2f} bits per character")
    return 0 if final < 2.9 else 1


if __name__ == "__main__":
    sys.exit(main())
