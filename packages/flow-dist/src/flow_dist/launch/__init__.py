"""Starting, supervising and terminating the ranks of a job.

In: a script, a number of ranks, hosts. Out: processes, their output, an exit status. This package
must not depend on collectives or on MPI.
"""
