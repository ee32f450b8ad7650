"""Models of other programs as parts of jobs; saved models, and the sessions that run them.

In: predict jobs and folders.  Out: `ModelBuilder` and `InferenceSession`.
The other parts of the API must not import this package.
"""
