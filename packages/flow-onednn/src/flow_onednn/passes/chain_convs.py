"""Join convolutions whose images do not stay in the caches to chains, which compute bands of rows.

See `kernels.convolution.chain`.  A chain has the bits of its convolutions, which a trial checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flow_core.authoring.pass_api import KernelRewriter, PassContext, like_op
from flow_core.authoring.specs import Graph, KernelSpec, Op, Value
from flow_core.base.thread_pools import process_budget
from flow_onednn.kernels.convolution.chain import CHAIN, MOST_CONVS, same_bits
from flow_onednn.kernels.convolution.int8 import PRODUCT as INT8_PRODUCT
from flow_onednn.kernels.convolution.packed import PRODUCT
from flow_onednn.recipes import problem

PRODUCTS = (PRODUCT, INT8_PRODUCT)
CACHE = 1 << 20
"""Bytes of an image, for each thread, up to which it is still in the caches when it is read."""


@dataclass(frozen=True)
class ChainConvs:
    """The pass that joins convolutions with packed weights."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    name: str = "onednn_chain_convs"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with chains."""
        rewriter = KernelRewriter(graph, self.kernels)
        for conv in (op for type_ in PRODUCTS for op in graph.of_type(type_)):
            if rewriter.is_untouched(conv) and conv.placement.device_type in self.devices:
                chain = list(_chain(rewriter, conv))
                if len(chain) > 1:
                    _join(rewriter, chain)
        return rewriter.finish()


def _chain(rewriter: KernelRewriter, conv: Op) -> Iterator[Op]:
    """Yield a convolution and those after it, as long as the images between them are large."""
    yield conv
    for _ in range(MOST_CONVS - 1):
        large = rewriter.type_of(conv.output()).nbytes > CACHE * process_budget().count
        after = rewriter.only_reader(conv.output(), conv.type) if large else None
        if after is None or after.inputs[0] != conv.output():
            return
        bound = conv.output(1) if conv.type == PRODUCT else None
        if bound is not None and rewriter.only_reader(bound) is not after:
            return
        yield after
        conv = after


def _join(rewriter: KernelRewriter, chain: Sequence[Op]) -> None:
    *inner, last = chain
    convs = tuple(problem(rewriter.query(op, rewriter.types[op.name])) for op in chain)
    inputs = [chain[0].inputs[0], *_rest(chain)]
    types = rewriter.types[last.name]
    outputs = tuple((t.shape, t.dtype.name) for t in types)
    attrs = {"op": last.type, "convs": tuple(conv.items for conv in convs), "outputs": outputs}
    new = like_op(last, CHAIN, attrs, inputs)
    whole = problem(rewriter.query(new, types))
    if not rewriter.accepts(new, types) or not same_bits(whole, convs):
        return
    rewriter.replace(last, new, types)
    for op in inner:
        rewriter.drop(op, last.name)


def _rest(chain: Sequence[Op]) -> Iterator[Value]:
    """Yield the inputs of convolutions except their images and the bounds that the chain has."""
    own = {op.output(1) for op in chain[:-1] if op.type == PRODUCT}
    for op in chain:
        yield from (value for value in op.inputs[1:] if value not in own)
