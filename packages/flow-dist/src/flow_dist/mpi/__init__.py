"""Collectives over MPI, in host memory.

In: exchanges of a plan. Out: persistent sends, receives and reductions.
Must not depend on the launcher.
"""
