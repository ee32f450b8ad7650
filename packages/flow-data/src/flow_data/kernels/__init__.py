"""Kernel implementations of the ops of flow-data.

In: arrays, TensorBuffers and records of a step. Out: launches, most of which work row by row.
This package must not import the public functions, the plugin or op specs.
"""
