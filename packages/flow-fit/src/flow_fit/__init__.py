"""A training loop, and its parts: metrics, early stopping, best checkpoints, progress."""

from flow_fit.checkpoints import BestCheckpoint as BestCheckpoint
from flow_fit.improvement import EarlyStopping as EarlyStopping
from flow_fit.improvement import ReduceOnPlateau as ReduceOnPlateau
from flow_fit.loop import fit as fit
from flow_fit.metrics import AUC as AUC
from flow_fit.metrics import Accuracy as Accuracy
from flow_fit.metrics import Mean as Mean
from flow_fit.progress import Progress as Progress
from flow_fit.tensorboard import TensorBoard as TensorBoard

__version__ = "0.1.0"
