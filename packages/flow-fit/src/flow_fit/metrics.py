"""Metrics that are accumulated batch by batch from the results of jobs."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import shown
from flow_fit.arguments import check, is_number, numbers


class Mean:
    """The mean of numbers.

    >>> loss = Mean()
    >>> loss.add([1.0, 3.0])
    >>> loss.add(8.0, weights=2)
    >>> loss.value
    5.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all numbers."""
        self._total = self._weight = 0.0

    def add(self, values: object, weights: object = 1) -> None:
        """Add numbers.

        Args:
            values: an array or a number, such as the losses of a batch.
            weights: the weight of each number, in a shape that broadcasts to that of the values.

        Raises:
            ConfigError: the shapes differ, or something is not a number.
        """
        x, w = numbers("Mean.add", values), numbers("Mean.add", weights)
        found = f"weights of shape {w.shape} for values of shape {x.shape}"
        check(_broadcasts(w.shape, x.shape), "Mean.add", found, "a weight for each value")
        w = np.broadcast_to(w, x.shape)
        self._total += float(np.sum(x * w))
        self._weight += float(np.sum(w))

    def __repr__(self) -> str:
        return f"Mean(value={self.value:.6g})"

    @property
    def value(self) -> float:
        """The mean of the numbers so far, NaN if there are none."""
        return self._total / self._weight if self._weight else float("nan")


class Accuracy:
    """The share of samples whose predicted class is correct.

    Args:
        threshold: the score of one class above which a sample belongs to it, such as 0.5 for
            probabilities and 0 for logits; predictions may then have one score per label.

    Raises:
        ConfigError: the threshold is not a finite number.

    >>> accuracy = Accuracy()
    >>> accuracy.add([[0.1, 0.9], [0.8, 0.2]], [1, 1])
    >>> accuracy.add([0, 1, 1], [0, 1, 1])
    >>> accuracy.value
    0.8
    >>> binary = Accuracy(threshold=0.5)
    >>> binary.add([0.2, 0.7, 0.4, 0.9], [0, 1, 1, 1])
    >>> binary.value
    0.75
    """

    def __init__(self, threshold: float | None = None) -> None:
        fits = threshold is None or is_number(threshold)
        check(fits, "Accuracy", f"threshold={shown(threshold)}", "a finite number, or None")
        self.threshold = threshold
        self._mean = Mean()

    def __repr__(self) -> str:
        return f"Accuracy(value={self.value:.6g})"

    def reset(self) -> None:
        """Forget all samples."""
        self._mean.reset()

    def add(self, predictions: object, labels: object) -> None:
        """Add a batch.

        Args:
            predictions: the classes, in the shape of ``labels``, or scores with one more axis, the
                last one, whose largest element is the class. A sample with a NaN among its scores
                has no class, and counts as wrong.
            labels: the correct classes, as integers, or one-hot in the shape of the scores.

        Raises:
            ConfigError: the shapes do not fit; the predictions have one score per sample, such as
                the probability of one class, and there is no threshold; or classes are not
                integers.
        """
        found, right = numbers("Accuracy.add", predictions), numbers("Accuracy.add", labels)
        if self.threshold is not None and found.shape == right.shape:
            found = np.where(np.isnan(found), -1, found > self.threshold)
        elif found.shape == right.shape and _scores(found) and _one_hot(right):
            right = right.argmax(-1)
        shapes = f"predictions of shape {found.shape} and labels of shape {right.shape}"
        allowed = "a class, or a vector of at least 2 scores, per label"
        if found.ndim == right.ndim + 1 and found.shape[-1] > 1:
            unknown = np.isnan(found).any(-1)
            found = np.where(unknown, np.nan, found.argmax(-1))
        elif (found != np.rint(found)).any():
            shapes += ", where a prediction is not an integer"
            allowed += "; for probabilities of one class, Accuracy(threshold=0.5)"
            check(False, "Accuracy.add", shapes, allowed)
        check(found.shape == right.shape, "Accuracy.add", shapes, allowed)
        whole = (right == np.rint(right)).all()
        check(whole, "Accuracy.add", "a label that is not an integer", "classes as integers")
        self._mean.add(found == right)

    @property
    def value(self) -> float:
        """The share so far, NaN if there are no samples."""
        return self._mean.value


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    same = (size in (1, other) for size, other in zip(shape[::-1], to[::-1], strict=False))
    return len(shape) <= len(to) and all(same)


def _scores(array: Array) -> bool:
    return array.ndim > 1 and array.shape[-1] > 1 and bool((array != np.rint(array)).any())


def _one_hot(array: Array) -> bool:
    return bool(((array == 0) | (array == 1)).all() and (array.sum(-1) == 1).all())


class AUC:
    """The area under the ROC curve: the chance that a positive scores higher than a negative.

    The result is exact; equal scores count one half.  All scores are kept in memory.

    >>> auc = AUC()
    >>> auc.add([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    >>> auc.value
    0.75
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._scores: list[Array] = []
        self._labels: list[Array] = []

    def add(self, scores: object, labels: object) -> None:
        """Add a batch.

        Args:
            scores: one number per sample, higher for samples that are rather positive; with a NaN
                among them, the area is NaN.
            labels: 0 or False for negative samples, 1 or True for positive ones.

        Raises:
            ConfigError: the shapes differ, or a label is another number.
        """
        x, y = numbers("AUC.add", scores).reshape(-1), numbers("AUC.add", labels).reshape(-1)
        found = f"{x.size} scores and {y.size} labels"
        check(x.shape == y.shape, "AUC.add", found, "a score per label")
        for label in y[~np.isin(y, (0, 1))]:
            check(False, "AUC.add", f"the label {label:g}", "0 or 1")
        self._scores.append(x.copy())
        self._labels.append(y.astype(bool))

    def __repr__(self) -> str:
        return f"AUC(value={self.value:.6g})"

    @property
    def value(self) -> float:
        """The area so far, NaN without a positive or a negative sample, or with a NaN score."""
        if not self._scores:
            return float("nan")
        scores, labels = np.concatenate(self._scores), np.concatenate(self._labels)
        positive = int(labels.sum())
        negative = labels.size - positive
        if not positive or not negative or np.isnan(scores).any():
            return float("nan")
        _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        ranks: Any = np.cumsum(count) - (count - 1) / 2  # the mean rank of equal scores
        above = ranks[place][labels].sum() - positive * (positive + 1) / 2
        return float(above / (positive * negative))
