"""Elementwise ops, reductions, matrix products and changes of element type."""
