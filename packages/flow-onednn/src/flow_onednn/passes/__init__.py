"""Passes over the graph with an op per device: NHWC activations, then fused ops."""
