"""Optimizers, learning rates and gradient limits: ``flow.optimizer``."""
