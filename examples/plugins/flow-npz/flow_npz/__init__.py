"""Checkpoints in numpy's ``.npz`` files."""
