"""The probe: measure the links between devices and the speed of a core, for a topology file.

Links are measured with the communication library that programs use: messages between two devices
of this process or, in a program of several processes, of two processes.  All others wait meanwhile,
since they may have no cores of their own.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import date
from statistics import median
from typing import Any

import numpy as np

from flow_core.base.dtypes import float32
from flow_core.base.thread_budget import NOT_DIVIDED, usable_cores
from flow_core.base.thread_pools import sized_pools
from flow_core.comm.exchange import Block, Exchange
from flow_core.costs.links import Link, LinkModel
from flow_core.costs.model import CORE, DEFAULT, HOST, CostModel, DeviceModel
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import tensor_type
from flow_core.sharding.topology import Device

SMALL, LARGE = 256, 1 << 22
"""The sizes of messages in elements of 4 bytes."""

REPEATS = 15
"""How often each time is measured; the median counts."""

MATRIX, VECTOR = 512, 1 << 23
"""The rows of the matrices, and the elements of the arrays, with which a core is measured."""


def probe(
    session: Session, machines: int = 1, show: Callable[[str], object] = lambda _: None
) -> CostModel:
    """Measure a core and the links; all processes of a program call this together."""
    session.resources.machine_num = machines
    show("measuring a core")
    world = session.world
    core = probe_core() if world is None or not world.rank else CORE
    _wait_for_all(session)
    classes = [Link("machine", "machine" if machines > 1 else "all", 0.0, 1.0)]
    classes += [Link("network", "all", 0.0, 1.0)] if machines > 1 else []
    found = []
    for link, other in zip(classes, (Device(HOST, 0, 1), Device(HOST, 1, 0)), strict=False):
        show(f"measuring the links of class {link.name!r}")
        times = [_message(session, Device(HOST, 0, 0), other, size) for size in (SMALL, LARGE)]
        _wait_for_all(session)
        bandwidth = 4 * (LARGE - SMALL) / max(times[1] - times[0], 1e-9)
        latency = max(times[0] - 4 * SMALL / bandwidth, 0.0)
        found.append(
            Link(link.name, link.joins, float(f"{latency:.3g}"), float(f"{bandwidth:.3g}"))
        )
    processes = "1 process" if world is None else f"{world.size} processes"
    source = f"probe of {platform.node() or 'this machine'}, {processes}, {date.today()}"
    links = LinkModel(tuple(found), ("direct",))
    cores = len(usable_cores())
    return CostModel(
        platform.machine(), source, links, {HOST: core}, step=DEFAULT.step, cores=cores
    )


def _wait_for_all(session: Session) -> None:
    if session.world is not None:
        session.world.gather(b"", "probe")


def probe_core() -> DeviceModel:
    """Measure a core: a matrix product, a copy that exceeds the caches, and a small kernel."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, MATRIX, MATRIX), np.float32)
    c = np.empty_like(a)
    x, y = np.ones(VECTOR, np.float32), np.empty(VECTOR, np.float32)
    s, t = np.ones(16, np.float32), np.empty(16, np.float32)
    with sized_pools(NOT_DIVIDED):
        product = _seconds(lambda: np.matmul(a, b, out=c))
        copy = _seconds(lambda: np.copyto(y, x))
        launch = _seconds(lambda: np.add(s, s, out=t))
    flops, bandwidth = 2 * MATRIX**3 / product, 2 * x.nbytes / copy
    return DeviceModel(_rounded(flops), _rounded(bandwidth), CORE.held, _rounded(launch))


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _seconds(call: Callable[[], object]) -> float:
    call()
    return median(_timed(call) for _ in range(REPEATS))


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _message(session: Session, a: Device, b: Device, size: int) -> float:
    """Return the seconds of one message: half of the time from a device to another and back."""
    comm = session.registry.comm((a, b))
    comm.attach(session.driver)
    arrays = {
        device: _array(session, comm, device, size) if device in comm.local else None
        for device in (a, b)
    }
    launches = []
    for number, ends in enumerate(((a, b), (b, a))):
        exchange = _send(f"probe{number}", *ends, size)
        launches += comm.bind(exchange, [arrays[ends[0]]], [arrays[ends[1]]])

    def both() -> None:
        comm.before_step()
        for launch in launches:
            launch()
        comm.after_step()

    return _seconds(both) / 2


def _array(session: Session, comm: Any, device: Device, size: int) -> Any:
    arena = comm.arena(device, 4 * size) or session.driver(device).allocate(4 * size)
    array = arena.view(0, (size,), np.float32)
    session.driver(device).copy_in(array, np.zeros(size, np.float32))
    return array


def _send(name: str, a: Device, b: Device, size: int) -> Exchange:
    types = (tensor_type((size,), float32),)
    block = Block(0, (0,), 0, (0,), (size,))
    return Exchange(name, "send_recv", "sum", types, types, (a,), (b,), (block,))
