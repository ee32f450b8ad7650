"""The time of collectives in closed form, by algorithm.

In the model of Hockney, a message of n bytes takes ``latency + n / bandwidth``, and a device sends
and receives one message at a time.  The formulas are those of Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH" (2005), for p devices, n bytes of the
whole tensor, latency a, and b seconds per byte:

========================  ===============================  =====================================
collective                ring                             tree
========================  ===============================  =====================================
all_gather, gather,       (p - 1) (a + n b / p)            log2(p) a + (p - 1) / p n b
reduce_scatter, scatter
all_reduce                2 (p - 1) (a + n b / p)          2 log2(p) a + 2 (p - 1) / p n b
broadcast, reduce         (log2(p) + p - 1) a + 2 (p - 1)  log2(p) (a + n b)
                          / p n b
all_to_all                (p - 1) (a + n b / p^2)          log2(p) (a + n b / (2 p))
========================  ===============================  =====================================

The hierarchical algorithm divides a collective among the groups of the link classes: an all-reduce
is a reduce-scatter in each group, all-reduces between the groups, of one device of each, and an
all-gather in each group.  The direct algorithm, one message per pair of devices, is computed from
the pieces of a reshard step (`flow_core.compiler.reshard.traffic`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil, inf, log2, prod

from flow_core.costs.links import Link, LinkModel
from flow_core.sharding.topology import Device

Shape = tuple[tuple[Link, int], ...]
"""The (class, number of groups of the class below) of a collective's devices, the inner first."""


def collective_seconds(
    name: str, devices: Sequence[Device], nbytes: float, links: LinkModel, flows: int = 1
) -> float:
    """Return the time of a collective by its fastest algorithm other than the direct one.

    Args:
        name: the collective.
        nbytes: the bytes of the whole tensor.
        flows: the number of equal collectives that share the uplinks at the same time.

    Returns:
        Seconds; infinity if the library has no such algorithm.

    >>> gpus = [Device("gpu", 0, i) for i in range(4)]
    >>> collective_seconds("all_reduce", gpus, 4_000_000, LinkModel())
    0.000608
    """
    if len(devices) < 2 or name not in RING:
        return inf
    form = _form(_as_key(devices), links)
    return _best(name, form, nbytes, flows, links.algorithms)


def exchange_seconds(
    name: str, devices: Sequence[Device], largest: float, links: LinkModel
) -> float:
    """Return the time of an exchange by the fastest algorithm, if its parts are of equal size.

    Args:
        name: the collective.
        largest: the bytes of the largest array of a device.

    >>> pair = [Device("gpu", 0, 0), Device("gpu", 1, 0)]
    >>> exchange_seconds("send_recv", pair, 1_250_000, LinkModel())
    0.00102
    """
    p = len(devices)
    if p < 2:
        return 0.0
    link = _widest(_as_key(devices), links)
    flows = max(row[-1] for row in links.flows(devices)) if link.uplink else 1
    messages, arrays = _direct(name, p)
    direct = messages * link.latency + arrays * largest * link.per_byte(flows)
    whole = largest * (p if name == "all_to_all" else 1)
    return min(direct, collective_seconds(name, devices, whole, links))


def _direct(name: str, p: int) -> tuple[float, float]:
    """Return the messages, and the largest arrays, that the busiest device sends or receives."""
    if name == "all_reduce":
        return 2 * (p - 1), 2 * (p - 1) / p
    if name in ("broadcast", "reduce"):
        return p - 1, p - 1
    if name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return p - 1, (p - 1) / p
    return 1, 1


def _as_key(devices: Sequence[Device]) -> tuple[Device, ...]:
    return devices if isinstance(devices, tuple) else tuple(devices)


@lru_cache(maxsize=1024)
def _form(devices: tuple[Device, ...], links: LinkModel) -> Shape:
    """Return the hierarchy of devices; one level if the groups are not of the same size."""
    found: list[tuple[Link, int]] = []
    groups: Sequence[object] = devices
    for link in links.classes:
        above: dict[object, set[object]] = {}
        for device, group in zip(devices, groups, strict=True):
            above.setdefault(link.group(device), set()).add(group)
        sizes = set(map(len, above.values()))
        if len(sizes) > 1:
            return ((_widest(devices, links), len(devices)),)
        if sizes != {1}:
            found.append((link, sizes.pop()))
        groups = [link.group(device) for device in devices]
    return tuple(found)


@lru_cache(maxsize=1024)
def _widest(devices: tuple[Device, ...], links: LinkModel) -> Link:
    """Return the first class of which one group has all devices."""
    for link in links.classes:
        if len({link.group(device) for device in devices}) == 1:
            return link
    return links.classes[-1]


@lru_cache(maxsize=8192)
def _best(name: str, form: Shape, nbytes: float, flows: int, algorithms: tuple[str, ...]) -> float:
    """Return the time of the fastest algorithm over the levels of a hierarchy."""
    link, top = form[-1]
    inner, found = prod(count for _, count in form[:-1]), inf
    for kind, formulas, crossing in (("ring", RING, 1), ("tree", TREE, inner)):
        if kind in algorithms:
            per_byte = link.per_byte(crossing * flows)
            found = min(found, formulas[name](top * inner, nbytes, link.latency, per_byte))
    if "hierarchical" in algorithms and len(form) > 1 and name in _PARTS:
        found = min(found, _divided(name, form, nbytes, flows, algorithms))
    return found


_PARTS: Mapping[str, tuple[tuple[str, bool], ...]] = {
    "all_reduce": (("reduce_scatter", False), ("all_reduce", True), ("all_gather", False)),
    "all_gather": (("all_gather", True), ("all_gather", False)),
    "reduce_scatter": (("reduce_scatter", False), ("reduce_scatter", True)),
    "broadcast": (("broadcast", True), ("broadcast", False)),
    "reduce": (("reduce", False), ("reduce", True)),
}
"""The collectives within (False) and between (True) groups of which a collective consists."""


def _divided(
    name: str, form: Shape, nbytes: float, flows: int, algorithms: tuple[str, ...]
) -> float:
    """Return the time of the hierarchical algorithm."""
    inner = prod(count for _, count in form[:-1])
    whole = name in ("broadcast", "reduce")  # between one device of each group
    total = 0.0
    for part, between in _PARTS[name]:
        if between:
            share, shared = (nbytes, flows) if whole else (nbytes / inner, flows * inner)
            total += _best(part, form[-1:], share, shared, algorithms)
        else:
            total += _best(part, form[:-1], nbytes, 1, algorithms)
    return total


def _rounds(p: int) -> int:
    return ceil(log2(p))


Formula = Callable[[int, float, float, float], float]


def _gather_ring(p: int, n: float, a: float, b: float) -> float:
    return (p - 1) * (a + n / p * b)


def _gather_tree(p: int, n: float, a: float, b: float) -> float:
    return _rounds(p) * a + (p - 1) / p * n * b


def _spread_ring(p: int, n: float, a: float, b: float) -> float:
    return (_rounds(p) + p - 1) * a + 2 * (p - 1) / p * n * b


def _spread_tree(p: int, n: float, a: float, b: float) -> float:
    return _rounds(p) * (a + n * b)


RING: Mapping[str, Formula] = {
    "all_gather": _gather_ring,
    "reduce_scatter": _gather_ring,
    "all_reduce": lambda p, n, a, b: 2 * _gather_ring(p, n, a, b),
    "gather": _gather_ring,
    "scatter": _gather_ring,
    "broadcast": _spread_ring,
    "reduce": _spread_ring,
    "all_to_all": lambda p, n, a, b: (p - 1) * (a + n / p**2 * b),
}
TREE: Mapping[str, Formula] = {
    "all_gather": _gather_tree,
    "reduce_scatter": _gather_tree,
    "all_reduce": lambda p, n, a, b: 2 * _gather_tree(p, n, a, b),
    "gather": _gather_tree,
    "scatter": _gather_tree,
    "broadcast": _spread_tree,
    "reduce": _spread_tree,
    "all_to_all": lambda p, n, a, b: _rounds(p) * (a + n / (2 * p) * b),
}
"""The seconds of collectives for p devices, n bytes, latency a, and b seconds per byte."""
