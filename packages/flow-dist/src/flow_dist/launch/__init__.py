"""Starting ranks, supervising them, and ending them.

In: a script and the number of ranks. Out: processes, their output, an exit status.
Must not depend on collectives.
"""
