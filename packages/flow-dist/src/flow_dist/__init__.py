"""Several processes and hosts: NCCL and MPI boxing, launcher, workers."""

__version__ = "0.1.0"
