"""A training loop, and its parts: metrics, early stopping, best checkpoints, progress."""

from flow_fit.checkpoints import BestCheckpoint
from flow_fit.improvement import EarlyStopping, ReduceOnPlateau
from flow_fit.loop import fit
from flow_fit.metrics import AUC, Accuracy, Mean
from flow_fit.progress import Progress
from flow_fit.tensorboard import TensorBoard

__version__ = "0.1.0"

__all__ = [
    "AUC", "Accuracy", "BestCheckpoint", "EarlyStopping", "Mean", "Progress", "ReduceOnPlateau",
    "TensorBoard", "fit",
]  # fmt: skip
