"""Collectives over NCCL, between GPUs.

In: exchanges of a plan. Out: calls of NCCL on streams of devices.
Must not depend on the launcher.
"""
