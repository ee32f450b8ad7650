"""`CombinedOptimizer`: groups of variables, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flow_core.api.arguments import check
from flow_core.api.optim.gradient_limits import LossScalePolicy, StaticLossScalePolicy
from flow_core.api.optim.optimizer import Optimizer
from flow_core.frontend.job.train import TrainOptions
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import current_job

__all__ = ["CombinedOptimizer"]


class CombinedOptimizer:
    """Several optimizers, each of which updates its own variables.

    Each optimizer has its own learning rate, weight decay and limit on its gradients.  Variables
    that no optimizer names are not updated.

    Args:
        optimizers: the optimizers, each with ``variables``, and without a loss scale.
        loss_scale_factor: a constant loss scale for all, or None.
        loss_scale_policy: a loss scale for all, or None.

    Raises:
        InferenceError: there is no optimizer, one does not name its variables, one has a loss
            scale, or two loss scales are given.

    >>> @flow.global_function(type="train")
    ... def job() -> tuple[tp.Numpy, tp.Numpy]:
    ...     ones = flow.ones_initializer()
    ...     v, w = (flow.get_variable(name, (1,), initializer=ones) for name in "vw")
    ...     slow = flow.optimizer.SGD(0.1, momentum=0, variables=["v"])
    ...     fast = flow.optimizer.SGD(0.5, momentum=0, variables=["w"])
    ...     flow.optimizer.CombinedOptimizer([slow, fast]).minimize(v + w)
    ...     return v, w
    >>> [[x.item() for x in job()] for _ in range(2)]
    [[1.0, 1.0], [0.8999999761581421, 0.5]]
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        loss_scale_factor: float | None = None,
        loss_scale_policy: LossScalePolicy | None = None,
    ) -> None:
        name = "CombinedOptimizer"
        given = list(optimizers) if isinstance(optimizers, list | tuple) else []
        known = bool(given) and all(isinstance(one, Optimizer) for one in given)
        check(known, name, f"optimizers {optimizers!r:.60}", "a list of flow.optimizer's")
        for one in given:
            found = f"{type(one).__name__} without variables"
            check(one.variables is not None, name, found, "variables=[...] for each optimizer")
            found = f"{type(one).__name__} with a loss scale"
            check(one.loss_scale_policy is None, name, found, "a loss scale of the combination")
        if loss_scale_factor is not None:
            check(loss_scale_policy is None, name, "two loss scales", "one of them")
            loss_scale_policy = StaticLossScalePolicy(loss_scale_factor)
        known = loss_scale_policy is None or isinstance(loss_scale_policy, LossScalePolicy)
        found = f"loss_scale_policy {loss_scale_policy!r:.60}"
        check(known, name, found, "one of flow.optimizer.loss_scale, called")
        self.optimizers = given
        self.loss_scale_policy = loss_scale_policy

    def options(self) -> TrainOptions:
        """Return all training options as literals."""
        groups = [one.options() for one in self.optimizers]
        policy = self.loss_scale_policy
        scale = None if policy is None else policy.scale()
        found: TrainOptions = replace(groups[0], loss_scale=scale, others=tuple(groups[1:]))
        return found

    def minimize(self, loss: BlobDef | Sequence[BlobDef]) -> None:
        """Make the job being traced minimize a loss at every call; see `Optimizer.minimize`."""
        losses = list(loss) if isinstance(loss, list | tuple) else [loss]
        current_job("minimize").train(optimizer=self.options(), losses=losses)
