"""The selection with the least cost over all grids of the devices.

A placement that the program gives without a hierarchy is a list of devices, such as 8.  The same
devices are the grids 2 x 4 and 4 x 2, too, in which an op can be split along two axes.  A request
for the list of devices is one for each dimension of a grid: devices hold the same parts, if parts
are even.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flow_core.compiler.select.optimal import optimal
from flow_core.compiler.select.problem import Problem, Selection, SelectionError
from flow_core.ir.graph import Graph, Op, rebuild
from flow_core.sharding.topology import Placement

Hierarchy = tuple[int, ...]

MOST_DIMENSIONS = 2
"""The largest number of dimensions of a grid."""


def over_grids(problem: Problem) -> Selection:
    """Choose the grid of the devices, and the signatures, of least total cost.

    The largest placements become grids.  If the program gives a hierarchy, it is the only one that
    is searched.  Raises `SelectionError` if no selection meets the requests.
    """
    started = time.perf_counter()
    found: list[Selection] = []
    refused: SelectionError | None = None
    hierarchies = grids(problem.graph)
    share = replace(problem, seconds=problem.seconds / len(hierarchies))
    for hierarchy in hierarchies:
        try:
            selection = optimal(on_grid(share, hierarchy))
        except SelectionError as error:  # no op of a request can be split that often
            refused = refused or error
            continue
        selection.hierarchy = hierarchy
        found.append(selection)
    if not found and refused is not None:
        raise refused
    return _cheapest(found, hierarchies, time.perf_counter() - started)


def grids(graph: Graph) -> Sequence[Hierarchy | None]:
    """Return the hierarchies to search; None for those of the placements themselves."""
    placements = {op.placement for op in graph.ops.values()}
    given = any(len(p.hierarchy) > 1 for p in placements)
    if given or any("hierarchy" in op.attrs for op in graph.ops.values()):
        return (None,)
    size = _most(graph)
    found = [f for n in range(2, MOST_DIMENSIONS + 1) for f in factorizations(size, n)]
    return (None, *found)


def _most(graph: Graph) -> int:
    """Return the number of devices of the largest placements."""
    return max((op.placement.size for op in graph.ops.values()), default=1)


def factorizations(size: int, count: int) -> Iterator[Hierarchy]:
    """Yield all products of factors above 1 that give a number, in order of the factors.

    >>> list(factorizations(12, 2))
    [(2, 6), (3, 4), (4, 3), (6, 2)]
    """
    if count == 1:
        yield (size,)
        return
    for first in range(2, size // 2 + 1):
        if size % first == 0:
            for rest in factorizations(size // first, count - 1):
                if min(rest) > 1:
                    yield (first, *rest)


def on_grid(problem: Problem, hierarchy: Hierarchy | None) -> Problem:
    """Return a problem whose largest placements have another hierarchy."""
    if hierarchy is None:
        return problem
    graph = problem.graph
    most = _most(graph)
    ops = [_moved(op, hierarchy) if op.placement.size == most else op for op in graph.ops.values()]
    return replace(problem, graph=rebuild(graph, ops))


def _moved(op: Op, hierarchy: Hierarchy) -> Op:
    placement = Placement(op.placement.device_type, op.placement.devices, hierarchy)
    sbp = tuple(None if nd is None else nd * len(hierarchy) for nd in op.sbp)
    return replace(op, placement=placement, sbp=sbp)


def _cheapest(
    found: Sequence[Selection], hierarchies: Sequence[Hierarchy | None], seconds: float
) -> Selection:
    """Return the selection of least cost, with a report on all grids."""
    reports = [s.report for s in found if s.report is not None]
    best = min(found, key=lambda s: s.report.cost.total if s.report else 0)
    bounds = [report.bound for report in reports]
    if best.report is not None:
        known = len(found) == len(hierarchies) and None not in bounds
        best.report = replace(
            best.report,
            greedy=reports[0].greedy,
            bound=min(b for b in bounds if b is not None) if known else None,
            grids=tuple(h for h in hierarchies if h is not None),
            grid=best.hierarchy,
            seconds=seconds,
        )
    return best
