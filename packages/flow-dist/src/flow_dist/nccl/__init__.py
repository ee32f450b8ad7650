"""Collectives over NCCL, between GPUs.

In: exchanges of a plan, arrays in device memory. Out: NCCL calls on streams of devices. This
package must not depend on the launcher, or import a binding of NCCL before a communicator is
created.
"""
