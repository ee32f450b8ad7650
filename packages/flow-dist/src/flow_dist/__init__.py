"""Several processes and hosts: launchers, control channel, comms over shared memory, MPI, NCCL."""

__version__ = "0.1.0"
