"""Pretrain a small BERT on unlabeled text, and fine-tune it to classify lines of text.

The text is Python's manual (``pydoc_data.topics``), so nothing is downloaded. Pretraining predicts
masked words. Fine-tuning keeps the encoder's variables and adds a layer that tells from which of
four chapters a line comes.
"""

import re
import sys
from collections import Counter
from pydoc_data.topics import topics

import matplotlib as mpl
import numpy as np

import flow_zoo
import oneflow as flow
import oneflow.typing as tp

PRETRAINING, FINE_TUNING, BATCH, LENGTH = 600, 150, 32, 24
CHAPTERS = ("specialnames", "typesseq", "debugger", "formatstrings")
LABELED, TESTED = 384, 128
UNKNOWN, MASK, SYMBOLS = 0, 1, 500
PICTURE = "bert.png"
SIZES = flow_zoo.BertConfig(
    SYMBOLS, LENGTH, width=48, layers=2, heads=4, hidden=192, dropout=0, stddev=0.05
)

LINES = tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32)


@flow.global_function(type="train")
def pretrain(
    masked: LINES, lines: LINES, weights: tp.Numpy.Placeholder((BATCH, LENGTH))
) -> tp.Numpy:
    logits = flow_zoo.bert_words(flow_zoo.bert(masked, SIZES), SIZES)
    each = flow.nn.sparse_softmax_cross_entropy_with_logits(lines, logits)
    loss = flow.math.reduce_sum(each * weights) / flow.math.reduce_sum(weights)
    flow.optimizer.Adam(2e-3, do_bias_correction=True).minimize(loss)
    return loss


def classifier(codes):
    features = flow.math.reduce_mean(flow_zoo.bert(codes, SIZES), axis=1)
    return flow.layers.dense(features, len(CHAPTERS), name="class")


@flow.global_function(type="train")
def fine_tune(lines: LINES, labels: tp.Numpy.Placeholder((BATCH,), flow.int32)) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, classifier(lines))
    flow.optimizer.Adam(2e-3, do_bias_correction=True).minimize(loss)
    return loss


@flow.global_function(type="predict")
def classify(lines: LINES) -> tp.Numpy:
    return flow.math.argmax(classifier(lines))


def words(text):
    return re.findall(r"[a-z]+|[^a-z\s]", text.lower())


MANUAL = " ".join(topics[name] for name in sorted(topics))
FREQUENT = [word for word, _ in Counter(words(MANUAL)).most_common(SYMBOLS - 2)]
CODES = {word: code for code, word in enumerate(FREQUENT, 2)}


def windows(text):
    """Return pieces of a text as the codes of their words, one piece per row."""
    codes = [CODES.get(word, UNKNOWN) for word in words(text)]
    return np.array(codes[: len(codes) // LENGTH * LENGTH], np.int32).reshape(-1, LENGTH)


def pretraining(rng):
    lines = windows(MANUAL)
    losses = []
    for _ in range(PRETRAINING):
        batch = lines[rng.integers(0, len(lines), BATCH)]
        hidden = rng.random(batch.shape) < 0.15
        masked = np.where(hidden, MASK, batch).astype(np.int32)
        losses.append(float(pretrain(masked, batch, hidden.astype(np.float32)).item()))
    return losses


def fine_tuning(train_set, test_set, rng):
    """Return the accuracy on the test set after each tenth step."""
    found = []
    for step in range(FINE_TUNING):
        chosen = rng.integers(0, LABELED, BATCH)
        fine_tune(train_set[0][chosen], train_set[1][chosen])
        if step % 10 == 9:
            guesses = [classify(part) for part in np.split(test_set[0], TESTED // BATCH)]
            found.append(np.mean(np.concatenate(guesses) == test_set[1]))
    return found


def load(rng):
    """Return labeled lines, and other lines for the test."""
    chapters = [rng.permutation(windows(topics[name])) for name in CHAPTERS]
    labeled, tested = LABELED // len(CHAPTERS), TESTED // len(CHAPTERS)
    for start, stop in ((0, labeled), (labeled, labeled + tested)):
        labels = np.repeat(np.arange(len(CHAPTERS), dtype=np.int32), stop - start)
        yield np.concatenate([c[start:stop] for c in chapters]), labels


def draw(losses, accuracies):
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(losses, linewidth=0.6)
    left.set(xlabel="step", ylabel="cross entropy", title="pretraining: masked words")
    right.plot(np.arange(10, FINE_TUNING + 1, 10), accuracies, marker=".")
    right.set(xlabel="step", ylabel="accuracy", title="fine-tuning: four chapters", ylim=(0, 1))
    figure.savefig(PICTURE, dpi=80)


def main():
    rng = np.random.default_rng(0)
    losses = pretraining(rng)
    accuracies = fine_tuning(*load(rng), rng)
    draw(losses, accuracies)
    print(f"pretraining: {PRETRAINING} steps, loss {losses[0]:.2f} to {np.mean(losses[-50:]):.2f}")
    print(f"accuracy on {TESTED} other lines of four chapters: {100 * accuracies[-1]:.1f} %")
    return 0 if accuracies[-1] > 0.65 else 1


if __name__ == "__main__":
    sys.exit(main())
