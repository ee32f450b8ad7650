"""Helpers for training loops: metrics, early stopping, best checkpoints and a progress line."""

from flow_fit.checkpoints import BestCheckpoint
from flow_fit.improvement import EarlyStopping
from flow_fit.metrics import AUC, Accuracy, Mean
from flow_fit.progress import Progress

__version__ = "0.1.0"

__all__ = ["AUC", "Accuracy", "BestCheckpoint", "EarlyStopping", "Mean", "Progress"]
