"""Sharded checkpoints from which a failed job restarts.

In: the variables of all ranks. Out: one file of data and one list per rank, and a completion mark.
Must not depend on MPI or NCCL: processes meet through the session's world.
"""
