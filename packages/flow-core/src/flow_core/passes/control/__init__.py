"""Passes on loops and branches, and on their bodies.

In: graphs whose ops have bodies.  Out: graphs with the same results.
"""
