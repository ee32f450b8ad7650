"""MPI: the processes of a program, host collectives, and the communicator (comm) in host memory.

In: exchanges of a plan; values that processes gather. Out: persistent requests, messages, barriers.
This package must not depend on the launcher or on NCCL.
"""
