"""TensorBoard event files: protobuf messages, and their writer.

In: scalars, histograms, images and text of a step.  Out: event files.
Must not depend on sessions or jobs.
"""
