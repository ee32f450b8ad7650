"""Ops on shapes, regions, indices and order, and sources of numbers."""
