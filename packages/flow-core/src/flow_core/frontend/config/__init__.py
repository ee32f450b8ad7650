"""Settings of jobs, and the scopes of their ops.

In: names and values that the program sets. Out: settings of one job. This package must not depend
on `frontend.trace`, `frontend.job` and `frontend.session`.
"""
