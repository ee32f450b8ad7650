"""Optimizers, learning rates and gradient limits: ``flow.optimizer``.

In: hyperparameters and a loss.  Out: `flow_core.frontend.job.train.TrainOptions` of literals. This
package must not depend on ops or on `math`, `nn` and `session`.
"""
