"""MPI: the world of processes, their host collectives, and the comm in host memory.

In: exchanges of a plan; values that processes gather. Out: persistent requests, messages, barriers.
Must not depend on the launcher or on NCCL.
"""
