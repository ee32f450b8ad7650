"""The session: its devices, its variables and their memory.

In: jobs and their variables. Out: state that jobs share under the names of variables.
Must not depend on the public API.
"""
