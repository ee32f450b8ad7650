"""Common parts of kernels."""

from functools import partial


def tensors(ctx):
    """Return the tensors of the inputs, and of the outputs."""
    return [x.tensor for x in ctx.inputs], [y.tensor for y in ctx.outputs]


def into(function, *keywords):
    """Return the bind function of a function of torch with ``out=``, with some attributes."""

    def bind(ctx):
        inputs, (out,) = tensors(ctx)
        return partial(function, *inputs, **{k: ctx.attrs[k] for k in keywords}, out=out)

    return bind
