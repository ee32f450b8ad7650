"""Rows of several devices, side by side in one memory, computed at once.

A batch that is split over devices which share a memory is fed to them side by side, so that it is
one array, and what is computed row by row can be done for all devices by one launch: that is what a
single device does.  It is done where it changes no bit, which kernels know
(`flow_core.plugins.specs.KernelSpec.rows`), and as long as every input is either side by side, too,
or the same on all devices.  Whatever is not computed so reads the part of its own device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from flow_core.base.errors import InferenceError, KernelNotFoundError
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.rows import of_elements, side_by_side
from flow_core.plugins.specs import InferContext, KernelQuery, KernelSpec, OpSpec

Parts = tuple[Value, ...]
Find = Callable[..., KernelSpec]


def with_rows(
    graph: Graph,
    sharing: ReplicaDedup,
    specs: Mapping[str, OpSpec],
    find: Find,
    once: Set[str] = frozenset(),
) -> ReplicaDedup:
    """What devices share, and the ops that they do at once.

    Args:
        graph: the physical graph.
        sharing: what its devices have, and do, only once.
        specs: the ops.
        find: the kernel of a question on a device type.
        once: ops that run when the plan is loaded.
    """
    if not sharing.same:
        return sharing
    found = _Rows(graph, sharing, specs, find, alias_roots(graph, specs, sharing))
    busy = sharing.idle() | sharing.within.keys() | sharing.onto.keys() | once
    for ops in _groups(graph):
        if not busy & {op.name for op in ops} and not any(op.control for op in ops):
            found.search(ops)
    merged = {op: ops[0] for ops in found.within.values() for op in ops[1:]}
    return replace(
        sharing,
        merged={**sharing.merged, **merged},
        within={**sharing.within, **{name: ops[1:] for name, ops in found.within.items()}},
        joined=found.joined,
        rows=found.rows,
    )


def _groups(graph: Graph) -> Iterator[list[Op]]:
    """The parts of each logical op, in the order of their devices; parts of a fed array."""
    groups: dict[object, list[Op]] = {}
    for op in graph.ops.values():
        origin = graph.origins.get(op.name)
        if op.type == "input":
            groups.setdefault((op.attrs.get("of"), op.type), []).append(op)
        elif origin is not None and op.placement.size == 1:
            key = (origin.unsharded, op.type, op.attrs, len(op.inputs))
            groups.setdefault(key, []).append(op)
    for ops in groups.values():
        devices = {op.placement.devices for op in ops}
        if 1 < len(ops) == len(devices):
            yield ops


@dataclass(slots=True)
class _Rows:
    """What is found so far.

    Attributes:
        rows: parts that lie side by side, by the first of them.
        place: of each part: the first one, and its number.
        within: ops that are done at once, by the first of them.
        joined: per such op and input, whether it is read side by side.
    """

    graph: Graph
    sharing: ReplicaDedup
    specs: Mapping[str, OpSpec]
    find: Find
    roots: Mapping[Value, Value]
    rows: dict[Value, Parts] = field(default_factory=dict)
    place: dict[Value, tuple[Value, int]] = field(default_factory=dict)
    within: dict[str, tuple[str, ...]] = field(default_factory=dict)
    joined: dict[str, tuple[bool, ...]] = field(default_factory=dict)

    def search(self, ops: Sequence[Op]) -> None:
        """Looks at the parts of one logical op."""
        if ops[0].type == "input":
            self._search_fed(ops)
            return
        spec = self.specs[ops[0].type]
        fixed = spec.alias is not None or spec.random or spec.effect or spec.mutates
        apart = [self._apart(values) for values in zip(*(op.inputs for op in ops), strict=True)]
        if fixed or None in apart or True not in apart:
            return
        which = tuple(map(bool, apart))
        if self._may_join(ops, which):
            self.within[ops[0].name] = tuple(op.name for op in ops)
            self.joined[ops[0].name] = which
            for k in range(len(self.graph.types[ops[0].name])):
                self._put(tuple(op.output(k) for op in ops))

    def _put(self, parts: Parts) -> None:
        self.rows[parts[0]] = parts
        self.place.update({part: (parts[0], k) for k, part in enumerate(parts)})

    def _search_fed(self, ops: Sequence[Op]) -> None:
        """Parts of a fed array that follow one another and have the other axes whole."""
        regions = [op.attrs.get("region") for op in ops]
        if None in regions or not all(regions):
            return
        rows = [region[0] for region in regions]  # type: ignore[index]  # not None
        rest = {region[1:] for region in regions}  # type: ignore[index]
        follow = all(a[1] == b[0] for a, b in pairwise(rows))
        types = [self.graph.types[op.name][0] for op in ops]
        if follow and len(rest) == 1 and side_by_side(types) is not None:
            self._put(tuple(op.output() for op in ops))

    def _apart(self, values: Parts) -> bool | None:
        """Whether the devices' inputs lie side by side, or are one; None for neither."""
        roots = [self.roots.get(value, value) for value in values]
        if len(set(roots)) == 1:
            return False if len({self.graph.type_of(value) for value in values}) == 1 else None
        places = [self.place.get(root) for root in roots]
        first = places[0]
        if first is None or len(self.rows[first[0]]) != len(values):
            return None
        return True if places == [(first[0], k) for k in range(len(values))] else None

    def _may_join(self, ops: Sequence[Op], which: Sequence[bool]) -> bool:
        """Whether one kernel makes the rows of all devices as each device's makes its own."""
        find = partial(self.find, device_type=ops[0].placement.device_type)
        whole = joined_query(self.graph, ops, which, find)
        if whole is None or not self._is_inferred(whole):
            return False
        parts = []
        for op in ops:
            types = self.graph.input_types(op), self.graph.types[op.name]
            parts.append(KernelQuery(op.type, op.attrs, *types, find))
        try:
            kernel, *others = map(find, (whole, *parts))
        except KernelNotFoundError:
            return False
        return all(k == kernel for k in others) and self._keeps_bits(kernel, whole, parts)

    def _is_inferred(self, whole: KernelQuery) -> bool:
        """Whether the op makes of all rows, with its attributes, the types that it should."""
        spec = self.specs[whole.op]
        try:
            made = spec.infer(InferContext(whole.op, whole.op, whole.inputs, whole.attrs))
        except InferenceError:
            return False
        return tuple(made) == whole.outputs

    def _keeps_bits(
        self, kernel: KernelSpec, whole: KernelQuery, parts: Sequence[KernelQuery]
    ) -> bool:
        if kernel.rows is not None:
            return kernel.rows(whole, parts)
        return self.specs[whole.op].elementwise and of_elements(whole, parts)


def joined_query(
    graph: Graph,
    ops: Sequence[Op],
    which: Sequence[bool],
    find: Callable[[KernelQuery], KernelSpec],
) -> KernelQuery | None:
    """What one kernel is asked that does the ops of several devices at once.

    None where their rows do not make one array.
    """
    rows = zip(*(graph.input_types(op) for op in ops), strict=True)
    inputs = [side_by_side(t) if w else t[0] for t, w in zip(rows, which, strict=True)]
    outs = [side_by_side(t) for t in zip(*(graph.types[op.name] for op in ops), strict=True)]
    if None in inputs or None in outs:
        return None
    read, made = (tuple(t for t in side if t is not None) for side in (inputs, outs))
    return KernelQuery(ops[0].type, ops[0].attrs, read, made, find)
