"""The session: its devices, its variables and their memory.

In: jobs and their variables. Out: state that jobs share under the names of variables. This package
must not depend on the public API.
"""
