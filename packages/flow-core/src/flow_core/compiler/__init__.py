"""The compiler, which turns the logical graph of a job into its plan.

In: a logical graph on which the passes have run, the registry, and the job's options.
Out: a `Plan`.
This package must not depend on the frontend, the runtime, the public API or particular backends.
"""
