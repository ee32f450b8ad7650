"""Settings of jobs, and the scopes in which their ops are made.

In: names and values of the user. Out: frozen settings of one job.
Must not depend on tracing, the session or the compiler.
"""
