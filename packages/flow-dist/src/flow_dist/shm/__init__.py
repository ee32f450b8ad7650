"""Collectives through memory that the processes of one host share.

In: exchanges of a plan. Out: copies and sums between mapped buffers.
Must not depend on the launcher.
"""
