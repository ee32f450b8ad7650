"""Data loaders: worker threads prefetch the batches of later steps.

In: the readers and host ops of a graph. Out: one ``data_loader`` op per device, and statistics.
This package must not import the public functions of flow-data or the op specs.
"""
