"""Checkpoints in files of numpy."""
