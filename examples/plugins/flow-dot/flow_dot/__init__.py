"""Exports predict jobs as Graphviz graphs."""
