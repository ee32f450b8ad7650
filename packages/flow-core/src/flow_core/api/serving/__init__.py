"""Models that are saved with their graphs, and sessions that run them without the script.

In: predict jobs and folders.  Out: `ModelBuilder` and `InferenceSession`.
The other parts of the API must not import this package.
"""
