"""TensorBoard event files: their protobuf messages, and a writer.

In: scalars, histograms, images and text of a step.  Out: event files.
This package must not depend on sessions or jobs.
"""
