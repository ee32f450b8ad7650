"""Tracing: records the placeholders and ops of a job while its function runs.

Tracing neither differentiates nor compiles the job.

In: a job function and its annotations. Out: a logical graph and the form of the job's results. This
package must not depend on `frontend.job` and `frontend.session`.
"""
