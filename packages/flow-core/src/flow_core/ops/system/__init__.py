"""Feeds, literals, fused groups, event files and Python kernels."""
