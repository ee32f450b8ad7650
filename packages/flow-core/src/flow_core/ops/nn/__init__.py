"""Ops of neural networks: convolutions, pooling, normalization, losses, activations.

In: types and attributes.  Out: specs in ``OPS``.  This package must not depend on `training` or
`system`.
"""
