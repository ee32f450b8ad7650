"""Train a wide and deep network on medical measurements.

The 569 samples of 30 measurements ship with scikit-learn. Each measurement becomes one of 10
categories. The wide part has a weight per category; the deep part has a vector per category and
two layers on top.
"""

import sys

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import train_test_split

import oneflow as flow
import oneflow.typing as tp

EPOCHS, BATCH, TESTED = 15, 32, 169
FIELDS, CATEGORIES, WIDTH = 30, 10, 8
PICTURE = "wide_deep.png"
INIT = flow.random_normal_initializer(stddev=0.05)


def model(codes):
    """Return the logit of each sample; codes has a category of each field, counted over all."""
    wide = flow.get_variable("wide", (FIELDS * CATEGORIES, 1), initializer=flow.zeros_initializer())
    deep = flow.get_variable("deep", (FIELDS * CATEGORIES, WIDTH), initializer=INIT)
    x = flow.reshape(flow.gather(deep, codes), (codes.shape[0], -1))
    for number in range(2):
        x = flow.layers.dense(
            x,
            32,
            flow.nn.relu,
            kernel_initializer=flow.glorot_uniform_initializer(),
            name=f"hidden{number}",
        )
    x = flow.layers.dense(x, 1, kernel_initializer=INIT, name="output")
    return x + flow.math.reduce_sum(flow.gather(wide, codes), axis=1)


@flow.global_function(type="train")
def train(
    codes: tp.Numpy.Placeholder((BATCH, FIELDS), dtype=flow.int32),
    labels: tp.Numpy.Placeholder((BATCH, 1)),
) -> tp.Numpy:
    loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, model(codes))
    flow.optimizer.Adam(3e-3, do_bias_correction=True).minimize(loss)
    return loss


@flow.global_function(type="predict")
def predict(codes: tp.Numpy.Placeholder((TESTED, FIELDS), dtype=flow.int32)) -> tp.Numpy:
    return flow.math.sigmoid(model(codes))


def load():
    data, labels = load_breast_cancer(return_X_y=True)
    borders = np.quantile(data, np.linspace(0, 1, CATEGORIES + 1)[1:-1], axis=0)
    codes = np.stack(
        [np.searchsorted(b, x) for b, x in zip(borders.T, data.T, strict=True)], axis=1
    )
    codes = (codes + CATEGORIES * np.arange(FIELDS)).astype(np.int32)
    labels = labels.astype(np.float32)[:, np.newaxis]
    return train_test_split(codes, labels, test_size=TESTED, random_state=0, stratify=labels)


def draw(labels, found, area):
    mpl.use("Agg")
    from matplotlib import pyplot

    false, true, _ = roc_curve(labels, found)
    figure, axes = pyplot.subplots(figsize=(4, 3.5), layout="constrained")
    axes.plot(false, true)
    axes.plot([0, 1], [0, 1], color="0.8")
    axes.set(xlabel="false positives", ylabel="true positives", title=f"area {area:.3f}")
    figure.savefig(PICTURE, dpi=80)


def main():
    codes, test_codes, labels, test_labels = load()
    rng = np.random.default_rng(0)
    whole = len(codes) // BATCH * BATCH
    for _ in range(EPOCHS):
        for batch in rng.permutation(len(codes))[:whole].reshape(-1, BATCH):
            loss = train(codes[batch], labels[batch])
    found = predict(test_codes)
    area = roc_auc_score(test_labels, found)
    draw(test_labels, found, area)
    print(f"{EPOCHS} epochs, loss {loss.mean():.3f}")
    print(f"area under the ROC curve of {TESTED} other samples: {area:.3f}")
    return 0 if area > 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
