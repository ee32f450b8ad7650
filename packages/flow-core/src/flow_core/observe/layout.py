"""The layout of the graph on the HTML page: a tree of scopes, and layers within each scope.

Forward, backward and update ops form three columns.  In each column, ops are grouped into scopes
according to the components of their names; numbered scopes, such as block0 to block11, are folded
into one, and scopes with many children are split into runs.  The
children of a scope are assigned to layers according to longest paths, and ordered within a layer
according to the barycenters of their neighbors (Sugiyama's method).  Except for sorting, the time
of the algorithm is linear in the number of ops and edges.  The page itself computes sizes and
positions because the reader can open and close scopes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

MOST_CHILDREN = 60
"""Scopes with more children are split into runs of at most `RUN`."""

RUN = 40
FOLDED = 4
"""The smallest number of numbered scopes, such as block0 and block1, that are folded into one."""

WIDEST = 9
"""Layers with more nodes than this are split."""

SWEEPS = 4

PHASES = ("forward", "backward", "update")


@dataclass(slots=True)
class Node:
    """An op or a scope."""

    label: str  # the last part of the node's name
    op: int = -1  # number of the op, or -1 for a scope
    children: list[int] = field(default_factory=list)  # numbers of the child nodes, in graph order
    parent: int = -1  # number of the enclosing scope, or -1 for the outermost scope
    layer: int = 0  # position in the enclosing scope
    order: int = 0  # position in the layer
    first: int = 0  # number of the node's first op


@dataclass(slots=True)
class _Tree:
    """The tree of scopes under construction."""

    nodes: list[Node]
    scopes: dict[tuple[str, ...], int] = field(default_factory=dict)

    def scope(self, path: tuple[str, ...]) -> int:
        if path not in self.scopes:
            parent = self.scope(path[:-1]) if path else -1
            self.scopes[path] = self.add(Node(path[-1] if path else "", parent=parent))
        return self.scopes[path]

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        number = len(self.nodes) - 1
        if node.parent >= 0:
            self.nodes[node.parent].children.append(number)
        return number


def layout(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[Node]:
    """Return the tree of scopes and ops, the outermost scope first, with layers and orders.

    Args:
        edges: (from, to) pairs of op numbers.

    >>> nodes = layout(["a/x", "a/y", "b"], [(0, 1), (1, 2)])
    >>> [(n.label, n.op, n.layer) for n in nodes]
    [('', -1, 0), ('forward', -1, 0), ('a', -1, 0), ('x', 0, 0), ('y', 1, 1), ('b', 2, 1)]
    """
    tree = _Tree([])
    for scope in ((), *((phase,) for phase in PHASES)):
        tree.scope(scope)
    updates = _only_for_updates(names, edges)
    paths = [tuple(_path(name)) for name in names]
    paths = [
        ("update", *path[1:]) if last else path for path, last in zip(paths, updates, strict=True)
    ]
    scopes = {path[:i] for path in paths for i in range(len(path))}
    for number, path in enumerate(paths):
        around = path if path in scopes else path[:-1]  # an op named like a scope belongs to it
        tree.add(Node(path[-1], number, parent=tree.scope(around), first=number))
    nodes = _numbered(_without_singles(_with_runs(_with_series(tree.nodes))))
    _arrange(nodes, edges)
    return nodes


def _path(name: str) -> list[str]:
    """Return the path of an op on the page: its phase, its scopes and its label.

    >>> _path("conv-weight"), _path("fc/matmul/grad/matmul_1")
    (['forward', 'conv', 'weight'], ['backward', 'fc', 'matmul', 'matmul_1'])
    >>> _path("conv-weight_optimizer"), _path("System-Train/rate")
    (['update', 'conv', 'weight', 'optimizer'], ['update', 'rate'])
    """
    if name.startswith("System-Train/"):
        return ["update", name.removeprefix("System-Train/")]
    if name.startswith("System-") or name == "advance_step":
        return ["update", name]
    phase, path = "forward", name
    if "/grad/" in name:
        phase, path = "backward", name.replace("/grad/", "/")
    elif name.endswith("_optimizer"):
        phase, path = "update", name.removesuffix("_optimizer") + "/optimizer"
    parts = [part for part in re.split(r"[/.-]", path) if part]
    return [phase, *(parts or [name])]


def _only_for_updates(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[bool]:
    """Return, for each op, whether only updates read it, as for optimizer state or the step."""
    readers: dict[int, list[int]] = {}
    for a, b in edges:
        readers.setdefault(a, []).append(b)
    found = [_path(name)[0] == "update" for name in names]
    for number in range(len(names) - 1, -1, -1):
        mine = readers.get(number)
        forward = _path(names[number])[0] == "forward"
        found[number] = found[number] or bool(mine and forward and all(found[m] for m in mine))
    return found


def _with_series(nodes: list[Node]) -> list[Node]:
    """Fold inner scopes whose names differ only in a number, such as block0 to block11.

    Series that overlap in graph order, such as conv0, norm0, conv1, norm1, become one scope: two
    scopes would depend on each other.
    """
    for number in range(len(nodes)):
        children = nodes[number].children
        series: dict[str, list[int]] = {}
        for place, child in enumerate(children):
            stem = re.sub(r"\d+", "*", nodes[child].label)
            if nodes[child].op < 0 and "*" in stem:
                series.setdefault(stem, []).append(place)
        for places, longest in _overlapping(series.values()):
            if longest >= FOLDED and len(places) < len(children):
                _fold(nodes, number, [children[place] for place in places])
    return nodes


def _overlapping(series: Iterable[list[int]]) -> list[tuple[list[int], int]]:
    """Join series of ascending places that overlap; return each with the length of its longest.

    >>> _overlapping([[0, 2, 4], [1, 3], [7, 9]])
    [([0, 1, 2, 3, 4], 3), ([7, 9], 2)]
    """
    found: list[tuple[list[int], int]] = []
    for places in sorted(series):
        if found and places[0] < found[-1][0][-1]:
            before, longest = found.pop()
            found.append((sorted([*before, *places]), max(longest, len(places))))
        else:
            found.append((places, len(places)))
    return found


def _fold(nodes: list[Node], parent: int, members: list[int]) -> None:
    """Put children of a scope into a new scope, in the place of the first of them."""
    label = f"{nodes[members[0]].label} … {nodes[members[-1]].label}"
    nodes.append(Node(label, parent=parent, children=members))
    siblings = nodes[parent].children
    siblings[siblings.index(members[0])] = len(nodes) - 1
    nodes[parent].children = [child for child in siblings if child not in members]
    for child in members:
        nodes[child].parent = len(nodes) - 1


def _with_runs(nodes: list[Node]) -> list[Node]:
    """Split the children of scopes with many children into runs, level by level."""
    number = 0
    while number < len(nodes):
        children = nodes[number].children
        if len(children) > MOST_CHILDREN:
            count = -(-len(children) // RUN)
            cuts = [len(children) * i // count for i in range(count + 1)]
            nodes[number].children = []
            for start, stop in pairwise(cuts):
                run = children[start:stop]
                label = f"{nodes[run[0]].label} … {nodes[run[-1]].label}"
                nodes.append(Node(label, parent=number, children=run))
                nodes[number].children.append(len(nodes) - 1)
                for child in run:
                    nodes[child].parent = len(nodes) - 1
            continue  # the number of runs may exceed the limit, too
        number += 1
    return nodes


def _without_singles(nodes: list[Node]) -> list[Node]:
    """Merge each scope that has only one child with that child, and drop empty phases."""
    nodes[0].children = [child for child in nodes[0].children if nodes[child].children]
    for number in range(len(nodes) - 1, 0, -1):
        node = nodes[number]
        if node.op < 0 and len(node.children) == 1 and node.parent > 0:
            (child,) = node.children
            siblings = nodes[node.parent].children
            siblings[siblings.index(number)] = child
            nodes[child].parent = node.parent
            nodes[child].label = f"{node.label}/{nodes[child].label}"
            node.children = []
    return nodes


def _numbered(nodes: list[Node]) -> list[Node]:
    """Renumber the nodes in use so that each node comes after its scope."""
    new = {old: number for number, old in enumerate(_depth_first(nodes))}
    found = [nodes[old] for old in new]
    for node in found:
        node.parent = new[node.parent] if node.parent >= 0 else -1
        node.children = [new[child] for child in node.children]
    for node in reversed(found):
        if node.children:
            node.first = min(found[child].first for child in node.children)
    return found


def _depth_first(nodes: list[Node]) -> Iterable[int]:
    stack = [0]
    while stack:
        number = stack.pop()
        yield number
        stack.extend(reversed(nodes[number].children))


# ------------------------------------------------------------------------------------- layers


def _arrange(nodes: list[Node], edges: Sequence[tuple[int, int]]) -> None:
    between: dict[int, set[tuple[int, int]]] = {}
    leaf = {node.op: number for number, node in enumerate(nodes) if node.op >= 0}
    for a, b in edges:
        scope, pair = _meeting(nodes, leaf[a], leaf[b])
        if pair[0] != pair[1]:
            between.setdefault(scope, set()).add(pair)
    for number, node in enumerate(nodes):
        if node.children:
            _arrange_scope(nodes, node.children, sorted(between.get(number, ())))


def _meeting(nodes: list[Node], a: int, b: int) -> tuple[int, tuple[int, int]]:
    """Return the innermost common scope of two nodes, and the child of it that contains each."""
    above: dict[int, int] = {}
    child = a
    while child >= 0:
        above[nodes[child].parent] = child
        child = nodes[child].parent
    while nodes[b].parent not in above:
        b = nodes[b].parent
    return nodes[b].parent, (above[nodes[b].parent], b)


def _arrange_scope(nodes: list[Node], children: list[int], edges: list[tuple[int, int]]) -> None:
    """Set the layers and orders of a scope's children; ignore edges against the graph order."""
    rank = {child: i for i, child in enumerate(sorted(children, key=lambda c: nodes[c].first))}
    before: dict[int, list[int]] = {child: [] for child in children}
    after: dict[int, list[int]] = {child: [] for child in children}
    for a, b in edges:
        if rank[a] < rank[b]:
            before[b].append(a)
            after[a].append(b)
    layers = _layers(rank, before, after)
    rows: list[list[int]] = [[] for _ in range(max(layers.values()) + 1)]
    for child in sorted(children, key=rank.__getitem__):
        rows[layers[child]].append(child)
    rows = [row for row in rows if row]
    _order(rows, before, after)
    rows = [row[i : i + WIDEST] for row in rows for i in range(0, len(row), WIDEST)]
    for layer, row in enumerate(rows):
        for order, child in enumerate(row):
            nodes[child].layer, nodes[child].order = layer, order


def _layers(
    rank: Mapping[int, int], before: Mapping[int, list[int]], after: Mapping[int, list[int]]
) -> dict[int, int]:
    """Return the layer of each node according to longest paths.

    Nodes without inputs are directly above their first reader.
    """
    order = sorted(rank, key=rank.__getitem__)
    layers: dict[int, int] = {}
    for child in order:
        layers[child] = max((layers[b] + 1 for b in before[child]), default=0)
    for child in order:
        if not before[child] and after[child]:
            layers[child] = max(0, min(layers[a] for a in after[child]) - 1)
    return layers


def _order(
    rows: list[list[int]], before: Mapping[int, list[int]], after: Mapping[int, list[int]]
) -> None:
    """Order nodes by the barycenters of their neighbors above, then of those below."""
    place = {child: i - len(row) / 2 for row in rows for i, child in enumerate(row)}
    for sweep in range(SWEEPS):
        near = before if sweep % 2 == 0 else after
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {
                child: fmean(place[n] for n in near[child]) if near[child] else place[child]
                for child in row
            }
            row.sort(key=wanted.__getitem__)
            place.update((child, i - len(row) / 2) for i, child in enumerate(row))
