"""Sharded checkpoints from which a failed job restarts.

In: the variables of all ranks. Out: a data file and a list for each rank, and a completion mark.
This package must not depend on MPI or NCCL: processes communicate through the world of the session.
"""
