"""The SBP algebra, devices, placements and the link model.

In: names and sizes of devices. Out: distributions of tensors over devices. This package must not
depend on graphs.
"""
