"""The compiler: from a logical graph to the plan of a job.

In: a logical graph after its passes, the registry and the job's options. Out: a `Plan`.
Must not depend on the frontend, the runtime, the public API or particular backends.
"""
