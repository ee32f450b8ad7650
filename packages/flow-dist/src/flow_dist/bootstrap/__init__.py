"""Discovery: how the processes of a program learn their ranks and addresses.

In: environment variables of launchers, addresses of hosts. Out: rank, size and address of rank 0.
This package must not depend on collectives.
"""
