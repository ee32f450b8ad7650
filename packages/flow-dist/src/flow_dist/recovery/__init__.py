"""Sharded checkpoints from which a failed job starts again.

In: the variables of all ranks. Out: files in parts, and one mark that makes them count.
Must not depend on collectives.
"""
