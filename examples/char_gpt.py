"""Train a small GPT on the characters of Python's own manual, and let it write.

The text is part of Python (``pydoc_data.topics``), so nothing is downloaded.
"""

import math
import sys
from pydoc_data.topics import topics

import matplotlib as mpl
import numpy as np

import flow_zoo
import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, LENGTH = 1500, 16, 64
PICTURE = "char_gpt.png"

TEXT = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
SYMBOLS = sorted(set(TEXT))
CODES = np.array([SYMBOLS.index(symbol) for symbol in TEXT], np.int32)
HELD_OUT = len(CODES) // 10
"""The last tenth of the text is only used for validation."""

SIZES = flow_zoo.GPT2Config(
    len(SYMBOLS), LENGTH, width=64, layers=2, heads=4, dropout=0, stddev=0.05
)

PART = tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32)


@flow.global_function(type="train")
def train(codes: PART, following: PART) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(following, flow_zoo.gpt2(codes, SIZES))
    schedule = flow.optimizer.CosineScheduler(3e-3, steps=STEPS)
    flow.optimizer.Adam(schedule, do_bias_correction=True).minimize(loss)
    return loss


@flow.global_function(type="predict")
def validate(codes: PART, following: PART) -> tp.Numpy:
    return flow.nn.sparse_softmax_cross_entropy_with_logits(following, flow_zoo.gpt2(codes, SIZES))


@flow.global_function(type="predict")
def scores(codes: tp.Numpy.Placeholder((1, LENGTH), dtype=flow.int32)) -> tp.Numpy:
    return flow_zoo.gpt2(codes, SIZES)


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
