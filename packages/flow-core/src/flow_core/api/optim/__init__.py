"""Optimizers, learning rates and gradient limits: ``flow.optimizer``.

In: hyperparameters and a loss.  Out: `flow_core.frontend.job.train.TrainOptions` of literals.
Must not depend on ops or on `math`, `nn` and `session`.
"""
