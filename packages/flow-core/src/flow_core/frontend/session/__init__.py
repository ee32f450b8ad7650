"""The session: variables, scopes, and what the processes of a program agree on.

In: jobs and their variables. Out: state that jobs share by name.
Must not depend on the public API.
"""
