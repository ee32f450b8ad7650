"""Functions that several kernels use."""

from functools import partial


def tensors(ctx):
    """Return the tensors of the inputs and those of the outputs."""
    return [x.tensor for x in ctx.inputs], [y.tensor for y in ctx.outputs]


def into(function, *keywords):
    """Return a bind function for a torch function with ``out=``; some attributes are keywords."""

    def bind(ctx):
        inputs, (out,) = tensors(ctx)
        return partial(function, *inputs, **{k: ctx.attrs[k] for k in keywords}, out=out)

    return bind
