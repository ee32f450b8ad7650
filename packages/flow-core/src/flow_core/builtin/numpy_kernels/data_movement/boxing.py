"""Exchanges as kernels, for groups of host ops such as loaders, whose exchanges no comm runs."""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.builtin.in_process import InProcessComm
from flow_core.builtin.numpy_kernels.binding import kernel
from flow_core.comm.exchange import make_exchange
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelSpec
from flow_core.sharding.topology import Device

HOST = Device("cpu", 0, 0)
"""The device of all inputs and outputs, which are in host memory for any placement."""


def _bind(ctx: BindContext) -> Sequence[Launch]:
    query = ctx.query
    ends = (HOST,) * len(ctx.inputs), (HOST,) * len(ctx.outputs)
    exchange = make_exchange("boxing", ctx.attrs, query.inputs, query.outputs, *ends)
    return InProcessComm((HOST,)).bind(exchange, ctx.inputs, ctx.outputs)


KERNELS: tuple[KernelSpec, ...] = (kernel("boxing", _bind),)
