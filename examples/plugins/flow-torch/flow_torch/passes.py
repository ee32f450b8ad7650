"""Passes over the physical graph (one op per device), for the devices of this package."""

from dataclasses import dataclass

from flow_core.authoring.pass_api import Rewriter, like_op
from flow_core.authoring.specs import KernelQuery, tensor_type
from flow_core.base.dtypes import int64
from flow_torch.ops import CONV, POOL_GRAD, POOL_OP
from flow_torch.table import DEVICE, is_plain_conv, is_plain_pool, pool_padding


def _query(graph, op):
    inputs = tuple(map(graph.type_of, op.inputs))
    return KernelQuery(op.type, op.attrs, inputs, graph.types[op.name])


def _ours(graph, type_):
    """Yield the ops of a type that run on devices of this package."""
    return (op for op in graph.of_type(type_) if op.placement.device_type == DEVICE)


@dataclass(frozen=True)
class FuseConvolutions:
    """A pass that merges a convolution, the addition of its bias, and relu."""

    name: str = "torch_fuse_convolutions"

    def apply(self, graph, context):
        """Return the graph with an op ``torch_conv2d`` in place of each such chain."""
        rewriter = Rewriter(graph)
        for conv in _ours(graph, "conv2d"):
            add = rewriter.only_reader(conv.output(), "bias_add")
            plain = add is not None and add.inputs[0] == conv.output() and add.attrs["axis"] == 1
            if plain and is_plain_conv(_query(graph, conv)):
                self._fuse(rewriter, conv, add)
        return rewriter.finish()

    def _fuse(self, rewriter, conv, add):
        relu = rewriter.only_reader(add.output(), "relu")
        *chain, last = (conv, add) if relu is None else (conv, add, relu)
        attrs = {name: conv.attrs[name] for name in CONV.attrs if name != "relu"}
        attrs["relu"] = relu is not None
        rewriter.replace(last, like_op(last, CONV.type, attrs, (*conv.inputs, add.inputs[1])))
        for op in chain:
            rewriter.drop(op, last.name)


@dataclass(frozen=True)
class KeepPoolIndices:
    """A pass that keeps the places of maxima for gradients, which would otherwise search them."""

    name: str = "torch_keep_pool_indices"

    def apply(self, graph, context):
        """Return the graph with a pair of ops in place of each pooling op and its gradient."""
        rewriter = Rewriter(graph)
        for pool in _ours(graph, "max_pool_2d"):
            grads = rewriter.readers(pool.output(), "max_pool_2d_grad")
            if len(grads) == 1 and is_plain_pool(_query(graph, pool)):
                self._replace(rewriter, pool, grads[0])
        return rewriter.finish()

    def _replace(self, rewriter, pool, grad):
        graph = rewriter.graph
        x, y = graph.type_of(pool.inputs[0]), graph.type_of(pool.output())
        attrs = {name: pool.attrs[name] for name in ("pool_size", "strides")}
        attrs["padding"] = tuple(pool_padding(pool.attrs, x.shape[2:], y.shape[2:]))
        types = (y, tensor_type(y.shape, int64))
        rewriter.replace(pool, like_op(pool, POOL_OP.type, attrs, pool.inputs), types)
        inputs = (pool.inputs[0], pool.output(1), grad.inputs[2])
        rewriter.replace(grad, like_op(grad, POOL_GRAD.type, attrs, inputs))
