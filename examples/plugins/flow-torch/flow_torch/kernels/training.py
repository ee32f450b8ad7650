"""Kernels for updates of variables, and for the learning rate and the step number.

Learning rates and step numbers are tensors with one element.  Launches on the CPU read them as
numbers; on CUDA devices, reading would wait for queued work, so updates multiply by the tensor.
"""

from functools import partial
from types import SimpleNamespace

import torch

from flow_core.authoring.update_rules import corrected_rate, scheduled_rate
from flow_torch.arrays import carve
from flow_torch.kernels.binding import tensors


def advance_step(ctx):
    """Add 1 to the step number."""
    (step,), _ = tensors(ctx)
    return partial(step.add_, 1)


def learning_rate_schedule(ctx):
    """Compute the learning rate on the host, from the step number."""
    (step,), (rate,) = tensors(ctx)
    names = ("learning_rate", "learning_rate_decay", "warmup_conf")
    schedule = [ctx.attrs[name] for name in names]

    def launch():
        rate.fill_(scheduled_rate(step.item(), *schedule))

    return launch


def adam_bias_correction_learning_rate(ctx):
    """Compute Adam's learning rate on the host."""
    (rate, step), (out,) = tensors(ctx)
    betas = (ctx.attrs["beta1"], ctx.attrs["beta2"])

    def launch():
        out.fill_(corrected_rate(rate.item(), step.item(), *betas))

    return launch


def _decay(ctx, model, rate):
    """Return the launches of the weight decay, which run before other changes of the model."""
    decay = ctx.attrs["weight_decay"]
    return (partial(model.addcmul_, model, rate, value=-decay),) if decay else ()


def _subtract(model, diff, rate, scale):
    """Return a launch that computes model -= scale * rate * diff."""
    if model.device.type != "cpu":
        return partial(model.addcmul_, diff, rate, value=-scale)

    def launch():
        model.add_(diff, alpha=-scale * rate.item())

    return launch


def sgd_update(ctx):
    """Compute model -= rate * (scale * diff + weight_decay * model)."""
    (model, diff, rate), _ = tensors(ctx)
    return (*_decay(ctx, model, rate), _subtract(model, diff, rate, ctx.attrs["scale"]))


def momentum_update(ctx):
    """Compute momentum = beta * momentum - rate * scale * diff; model += momentum."""
    (model, diff, rate, momentum), _ = tensors(ctx)
    return (
        *_decay(ctx, model, rate),
        partial(momentum.mul_, ctx.attrs["beta"]),
        _subtract(momentum, diff, rate, ctx.attrs["scale"]),
        partial(model.add_, momentum),
    )


def adam_update(ctx):
    """Compute the moments, and model -= rate * m / (sqrt(v) + epsilon)."""
    (model, diff, rate, m, v), _ = tensors(ctx)
    attrs = ctx.attrs
    (step,) = carve(ctx.workspace, (ctx.inputs[0].shape, ctx.inputs[0].dtype))
    beta1, beta2, scale = attrs["beta1"], attrs["beta2"], attrs["scale"]
    return (
        partial(m.mul_, beta1),
        partial(m.add_, diff, alpha=(1 - beta1) * scale),
        partial(v.mul_, beta2),
        partial(v.addcmul_, diff, diff, value=(1 - beta2) * scale**2),
        partial(torch.sqrt, v, out=step),
        partial(step.add_, attrs["epsilon"]),
        partial(torch.div, m, step, out=step),
        *_decay(ctx, model, rate),
        _subtract(model, step, rate, 1.0),
    )


KERNELS = SimpleNamespace(
    adam_bias_correction_learning_rate=adam_bias_correction_learning_rate,
    adam_update=adam_update,
    advance_step=advance_step,
    learning_rate_schedule=learning_rate_schedule,
    momentum_update=momentum_update,
    sgd_update=sgd_update,
)
