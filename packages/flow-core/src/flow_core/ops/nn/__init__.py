"""Ops of neural networks: convolutions, pooling, normalization, losses, activations."""
