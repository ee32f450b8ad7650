"""The kit for communication libraries: subclass `CommKit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import ALL, DType, as_dtype
from flow_core.base.errors import PlanError
from flow_core.base.shapes import Shape
from flow_core.device import Comm
from flow_core.exchange import COMBINE, Block, Exchange, links_of, neutral
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import Available, load
from flow_core.sharding.topology import Device
from flow_core.testing.kit import Kit, Parameters

Ends = Sequence[tuple[Device, Shape]]
"""Device and shape of each input or output."""


class CommKit(Kit):
    """Check that a comm transfers, reduces and counts as plans expect.

    The name of a gap is the collective.  A comm with one device per process runs the kit in all
    processes; each checks the arrays on its own devices.

    Attributes:
        comm_name: name of the `CommSpec` under test.
        devices: four or more devices.
        dtypes: element types that it must support.
    """

    comm_name: ClassVar[str] = "in_process"
    devices: ClassVar[tuple[Device, ...]] = tuple(Device("cpu", 0, i) for i in range(4))
    dtypes: ClassVar[tuple[str, ...]] = tuple(d.name for d in ALL if d.name != "char")

    def comm(self) -> Comm:
        """Create a comm between all devices; skip the test if it is not available."""
        spec = self.shared_registry().comms[self.comm_name]
        found = self.once("bootstrap", lambda: load(spec.bootstrap)())
        if not isinstance(found, Available):
            pytest.skip(f"{self.comm_name}: {found.reason}")
        comm: Comm = load(spec.load)(self.devices)
        return comm

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        """Run a test's body in this process; override to run it in several processes."""
        body(self.comm())

    def array(self, device: Device, value: Array) -> Any:
        """Create an array on a device from a host array; by default in host memory."""
        return value.copy()

    def host(self, array: Any) -> Any:
        """Copy a device array to the host; wait for previous launches."""
        return array

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return each case, and each element type for tests that take one."""
        names = CASES if check in _PER_CASE else [self.comm_name]
        if check == "sums_in_place":
            names = [name for name in CASES if name.startswith("all_reduce")]
        if check in _PER_DTYPE:
            return ((name, dtype) for name in names for dtype in self.dtypes)
        return ((name,) for name in names)

    # --------------------------------------------------------------------------------- tests

    def test_is_a_comm(self, name: str) -> None:
        """The comm implements the protocol, and connects the requested devices."""

        def body(comm: Comm) -> None:
            assert isinstance(comm, Comm)
            assert comm.name == name
            assert tuple(comm.devices) == self.devices
            assert comm.local
            assert set(comm.local) <= set(self.devices)
            assert dict(comm.sent()) == {}

        self.everywhere(body)

    def test_moves(self, name: str, dtype: str) -> None:
        """Outputs equal numpy's and inputs stay unchanged, for all element types."""
        cases = CASES[name](self.devices, as_dtype(dtype))

        def body(comm: Comm) -> None:
            runs = [_Run(self, comm, t, seed) for seed, t in enumerate(cases)]
            for run in runs:
                run.launch()
            for run in runs:
                run.check()

        self.everywhere(body)

    def test_is_bound_once(self, name: str) -> None:
        """Launches can be repeated; each reads the current inputs."""
        cases = CASES[name](self.devices, as_dtype("float32"))

        def body(comm: Comm) -> None:
            runs = [_Run(self, comm, t, seed) for seed, t in enumerate(cases)]
            for step in range(3):
                for run in runs:
                    run.refill(100 + step)
                    run.launch()
                    run.check()

        self.everywhere(body)

    def test_sums_in_place(self, name: str) -> None:
        """An output of an all-reduce may be the input of its device, on all or some devices."""
        cases = CASES[name](self.devices, as_dtype("float32"))

        def body(comm: Comm) -> None:
            for some in (1, 2):
                runs = [_Run(self, comm, t, seed, some) for seed, t in enumerate(cases)]
                for step in range(3):
                    for run in runs:
                        run.refill(100 + step)
                        run.launch()
                        run.check()

        self.everywhere(body)

    def test_counts_what_it_sends(self, name: str) -> None:
        """Bytes per link equal those of the exchange per launch; binding sends nothing."""
        cases = CASES[name](self.devices, as_dtype("float32"))

        def body(comm: Comm) -> None:
            runs = [_Run(self, comm, t, seed) for seed, t in enumerate(cases)]
            assert dict(comm.sent()) == {}
            for step in (1, 2):
                for run in runs:
                    run.launch()
                    run.check()
                local = {
                    (sender, receiver): step * nbytes
                    for (sender, receiver), nbytes in links_of(iter(cases)).items()
                    if sender in comm.local
                }
                assert dict(comm.sent()) == local

        self.everywhere(body)

    def test_all_hold_the_same_bits(self, name: str) -> None:
        """The result of an all-reduce is bitwise equal on all devices and at every launch."""
        shape = (1000,)
        everybody = [(device, shape) for device in self.devices]
        exchange = _exchange("bits", "all_reduce", everybody, everybody, dtype=as_dtype("float32"))
        rng = np.random.default_rng(5)
        data = [rng.normal(size=shape).astype("f4") for _ in everybody]

        def body(comm: Comm) -> None:
            run = _Run(self, comm, exchange, 0)
            run.refill_with(data)
            found = []
            for _ in range(2):
                run.launch()
                found += [self.host(out).copy() for out in run.outputs if out is not None]
            for other in found:
                np.testing.assert_array_equal(other, found[0])
            np.testing.assert_allclose(found[0], sum(data), rtol=1e-5, atol=1e-5)

        self.everywhere(body)

    def test_refuses_what_does_not_fit(self, name: str) -> None:
        """Binding missing, superfluous or wrongly typed arrays raises `PlanError`."""
        (good,) = CASES["send_recv"](self.devices, as_dtype("float32"))
        sender, receiver = good.senders[0], good.receivers[0]

        def body(comm: Comm) -> None:
            given = [self._local(comm, sender, np.zeros((4,), "f4"))]
            made = [self._local(comm, receiver, np.zeros((4,), "f4"))]
            bad = np.zeros((5,), "f4"), np.zeros((4,), "f8"), None
            for value in bad if sender in comm.local else ():
                with pytest.raises(PlanError, match="send_recv"):
                    comm.bind(good, [value], made)
            for value in bad if receiver in comm.local else ():
                with pytest.raises(PlanError, match="send_recv"):
                    comm.bind(good, given, [value])
            with pytest.raises(PlanError, match="2 inputs"):
                comm.bind(good, [*given, None], made)
            for wrong in (replace(good, collective="telepathy"), replace(good, combine="mean")):
                with pytest.raises(PlanError, match="send_recv"):
                    comm.bind(wrong, given, made)

        self.everywhere(body)

    def _local(self, comm: Comm, device: Device, value: Array) -> Any:
        return self.array(device, value) if device in comm.local else None


_PER_CASE = ("moves", "is_bound_once", "counts_what_it_sends")
_PER_DTYPE = ("moves",)


class _Run:
    """An exchange bound to arrays with random contents, the same in all processes.

    With ``in_place``, every so many outputs are inputs.
    """

    def __init__(
        self, kit: CommKit, comm: Comm, exchange: Exchange, seed: int, in_place: int = 0
    ) -> None:
        self._kit, self._exchange, self._comm = kit, exchange, comm
        self.inputs = [self._array(d, t) for d, t in self._ends(True)]
        self._overwritten = set(range(0, len(self.inputs), in_place) if in_place else ())
        self.outputs = [
            self.inputs[i] if i in self._overwritten else self._array(d, t)
            for i, (d, t) in enumerate(self._ends(False))
        ]
        self.refill(seed)
        self._launches = list(comm.bind(exchange, self.inputs, self.outputs))

    def _ends(self, inputs: bool) -> Iterator[tuple[Device, Any]]:
        t = self._exchange
        yield from zip(*(t.senders, t.inputs) if inputs else (t.receivers, t.outputs), strict=True)

    def _array(self, device: Device, type_: Any) -> Any:
        garbage = np.full(prod(type_.shape) * type_.dtype.itemsize, 0x55, np.uint8)
        value = garbage.view(type_.dtype.numpy).reshape(type_.shape)
        return self._kit._local(self._comm, device, value)

    def refill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.refill_with([_numbers(rng, t.shape, t.dtype) for t in self._exchange.inputs])

    def refill_with(self, data: Sequence[Array]) -> None:
        self._data = list(data)
        for array, value in zip(self.inputs, self._data, strict=True):
            if array is not None:
                array[...] = value

    def launch(self) -> None:
        for launch in self._launches:
            launch()

    def check(self) -> None:
        """Check all local outputs and inputs for bitwise equality."""
        wanted = _reference(self._exchange, self._data)
        rows = [("output", self.outputs, wanted), ("input", self.inputs, self._data)]
        for noun, arrays, values in rows:
            for index, (array, value) in enumerate(zip(arrays, values, strict=True)):
                kept = noun == "output" or index not in self._overwritten
                if array is not None and kept:
                    where = f"{noun} {index} of {self._exchange}"
                    np.testing.assert_array_equal(self._kit.host(array), value, where)


def _numbers(rng: np.random.Generator, shape: Shape, dtype: DType) -> Array:
    """Draw small integers, whose sums are exact."""
    low = 0 if dtype.kind in "ub" else -4
    return np.asarray(rng.integers(low, 2 if dtype.kind == "b" else 5, shape)).astype(dtype.numpy)


def _reference(exchange: Exchange, inputs: Sequence[Any]) -> list[Any]:
    combine = COMBINE[exchange.combine]
    if exchange.collective == "all_reduce":
        p = len(exchange.group)
        sums = [reduce(combine, inputs[i : i + p]) for i in range(0, len(inputs), p)]
        return [total for total in sums for _ in range(p)]
    outputs: list[Any] = [np.zeros(t.shape, t.dtype.numpy) for t in exchange.outputs]
    for index, operation in exchange.fills:
        outputs[index][...] = neutral(operation, exchange.outputs[index].dtype)
    for b in exchange.blocks:
        new = inputs[b.source][*_window(b.start, b.size), ...]
        target = outputs[b.target][*_window(b.at, b.size), ...]
        target[...] = new if b.first else combine(target, new)
    return outputs


def _window(start: Shape, size: Shape) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))


# ------------------------------------------------------------------------------------------ cases


def _exchange(
    name: str,
    collective: str,
    inputs: Ends,
    outputs: Ends,
    blocks: Sequence[Block] = (),
    *,
    dtype: DType,
    combine: str = "sum",
    fills: tuple[tuple[int, str], ...] = (),
    members: tuple[str, ...] = (),
) -> Exchange:
    return Exchange(
        name,
        collective,
        combine,
        tuple(tensor_type(shape, dtype) for _, shape in inputs),
        tuple(tensor_type(shape, dtype) for _, shape in outputs),
        tuple(device for device, _ in inputs),
        tuple(device for device, _ in outputs),
        tuple(b for b in blocks if prod(b.size)),
        fills,
        members,
    )


def _offsets(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:i]) for i in range(len(counts))]


Draft = Callable[[Sequence[Device], DType], Exchange]
Case = Callable[[Sequence[Device], DType], list[Exchange]]


def all_gather(counts: Sequence[int]) -> Draft:
    """Every device receives the concatenation of all devices' parts."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        given = [(d, (n,)) for d, n in zip(group, counts, strict=True)]
        made = [(d, (sum(counts),)) for d in group]
        blocks = [
            Block(s, (0,), t, (at,), (n,))
            for s, (at, n) in enumerate(zip(_offsets(counts), counts, strict=True))
            for t in range(len(group))
        ]
        return _exchange("all_gather", "all_gather", given, made, blocks, dtype=dtype)

    return draft


def reduce_scatter(counts: Sequence[int], combine: str = "sum") -> Draft:
    """Every device receives a part of the reduced result."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        given = [(d, (sum(counts),)) for d in group]
        made = [(d, (n,)) for d, n in zip(group, counts, strict=True)]
        blocks = [
            Block(s, (at,), t, (0,), (n,), s == 0)
            for t, (at, n) in enumerate(zip(_offsets(counts), counts, strict=True))
            for s in range(len(group))
        ]
        name = "reduce_scatter"
        return _exchange(name, name, given, made, blocks, dtype=dtype, combine=combine)

    return draft


def all_reduce(*shapes: Shape, combine: str = "sum") -> Draft:
    """Every device receives the reduced result of each shape."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        ends = [(d, shape) for shape in shapes for d in group]
        members = tuple(f"member{i}" for i in range(len(shapes))) if len(shapes) > 1 else ()
        return _exchange(
            "all_reduce", "all_reduce", ends, ends, dtype=dtype, combine=combine, members=members
        )

    return draft


def all_to_all(counts: Callable[[int, int], int]) -> Draft:
    """Device s sends ``counts(s, t)`` elements to device t."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        ranks = range(len(group))
        sent = [[counts(s, t) for t in ranks] for s in ranks]
        received = [[counts(s, t) for s in ranks] for t in ranks]
        blocks = [
            Block(s, (sum(sent[s][:t]),), t, (sum(received[t][:s]),), (sent[s][t],))
            for s in ranks
            for t in ranks
        ]
        given = [(d, (sum(row),)) for d, row in zip(group, sent, strict=True)]
        made = [(d, (sum(row),)) for d, row in zip(group, received, strict=True)]
        return _exchange("all_to_all", "all_to_all", given, made, blocks, dtype=dtype)

    return draft


def gather(root: int, counts: Sequence[int]) -> Draft:
    """The root receives all parts."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        whole = all_gather(counts)(group, dtype)
        blocks = [replace(b, target=0) for b in whole.blocks if b.target == root]
        given = [(d, (n,)) for d, n in zip(group, counts, strict=True)]
        made = [(group[root], (sum(counts),))]
        return _exchange("gather", "gather", given, made, blocks, dtype=dtype)

    return draft


def scatter(root: int, counts: Sequence[int]) -> Draft:
    """The root sends a part to each device."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        given = [(group[root], (sum(counts),))]
        made = [(d, (n,)) for d, n in zip(group, counts, strict=True)]
        blocks = [
            Block(0, (at,), t, (0,), (n,))
            for t, (at, n) in enumerate(zip(_offsets(counts), counts, strict=True))
        ]
        return _exchange("scatter", "scatter", given, made, blocks, dtype=dtype)

    return draft


def broadcast(root: int, shape: Shape) -> Draft:
    """The root sends the same array to all devices."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        zero = (0,) * len(shape)
        made = [(d, shape) for i, d in enumerate(group) if i != root]
        blocks = [Block(0, zero, t, zero, shape) for t in range(len(made))]
        return _exchange(
            "broadcast", "broadcast", [(group[root], shape)], made, blocks, dtype=dtype
        )

    return draft


def reduce_to(root: int, shape: Shape, combine: str = "sum") -> Draft:
    """The root receives the reduction over all devices."""

    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        zero = (0,) * len(shape)
        given = [(d, shape) for d in group]
        blocks = [Block(s, zero, 0, zero, shape, s == 0) for s in range(len(group))]
        made = [(group[root], shape)]
        return _exchange("reduce", "reduce", given, made, blocks, dtype=dtype, combine=combine)

    return draft


def _send_recv(group: Sequence[Device], dtype: DType) -> Exchange:
    ends = [(group[0], (4,))], [(group[1], (4,))]
    return _exchange("send_recv", "send_recv", *ends, [Block(0, (0,), 0, (0,), (4,))], dtype=dtype)


def _columns(group: Sequence[Device], dtype: DType) -> Exchange:
    """An all-gather on axis 1: blocks that are not contiguous in the outputs."""
    widths = [2 + i % 2 for i in range(len(group))]
    given = [(d, (3, n)) for d, n in zip(group, widths, strict=True)]
    made = [(d, (3, sum(widths))) for d in group]
    blocks = [
        Block(s, (0, 0), t, (0, at), (3, n))
        for s, (at, n) in enumerate(zip(_offsets(widths), widths, strict=True))
        for t in range(len(group))
    ]
    return _exchange("columns", "all_gather", given, made, blocks, dtype=dtype)


def _transpose(group: Sequence[Device], dtype: DType) -> Exchange:
    """From rows to columns: blocks that are not contiguous in the inputs."""
    p = len(group)
    given, made = [(d, (2, 3 * p)) for d in group], [(d, (2 * p, 3)) for d in group]
    blocks = [Block(s, (0, 3 * t), t, (2 * s, 0), (2, 3)) for s in range(p) for t in range(p)]
    return _exchange("transpose", "all_to_all", given, made, blocks, dtype=dtype)


def _reduced_columns(group: Sequence[Device], dtype: DType) -> Exchange:
    """A reduce-scatter on axis 1."""
    p = len(group)
    given, made = [(d, (3, 2 * p)) for d in group], [(d, (3, 2)) for d in group]
    blocks = [Block(s, (0, 2 * t), t, (0, 0), (3, 2), s == 0) for t in range(p) for s in range(p)]
    return _exchange("reduced_columns", "reduce_scatter", given, made, blocks, dtype=dtype)


def _pads(operation: str) -> Draft:
    def draft(group: Sequence[Device], dtype: DType) -> Exchange:
        ends = [(group[0], (2, 3))], [(group[0], (4, 3))]
        block, fill = Block(0, (0, 0), 0, (1, 0), (2, 3)), ((0, operation),)
        return _exchange(
            "pad", "zero_pad", *ends, [block], dtype=dtype, combine=operation, fills=fill
        )

    return draft


def _nothing(group: Sequence[Device], dtype: DType) -> Exchange:
    """An exchange that only writes neutral elements."""
    return _exchange(
        "nothing", "zero_pad", [], [(group[1], (3,))], dtype=dtype, fills=((0, "sum"),)
    )


def _slice(group: Sequence[Device], dtype: DType) -> Exchange:
    ends = [(group[1], (5, 4))], [(group[1], (2, 4))]
    block = Block(0, (3, 0), 0, (0, 0), (2, 4))
    return _exchange("slice", "slice", *ends, [block], dtype=dtype)


UNEVEN, EVEN, HOLES, EMPTY = (5, 3, 4, 2), (3, 3, 3, 3), (4, 0, 0, 1), (0, 0, 0, 0)


def _on_four(draft: Draft) -> Case:
    return lambda devices, dtype: [draft(devices[:4], dtype)]


def _on_some(draft: Draft) -> Case:
    """A group of some devices, in another order."""
    return lambda devices, dtype: [draft((devices[3], devices[1]), dtype)]


def _on_pairs(draft: Draft) -> Case:
    """Two groups at once."""

    def case(devices: Sequence[Device], dtype: DType) -> list[Exchange]:
        groups = devices[0:4:2], devices[1:4:2]
        return [replace(draft(g, dtype), name=f"group{i}") for i, g in enumerate(groups)]

    return case


def _irregular(s: int, t: int) -> int:
    return (3 * s + 5 * t) % 4


CASES: dict[str, Case] = {
    "all_gather": _on_four(all_gather(EVEN)),
    "all_gather_uneven": _on_four(all_gather(UNEVEN)),
    "all_gather_holes": _on_four(all_gather(HOLES)),
    "all_gather_empty": _on_four(all_gather(EMPTY)),
    "all_gather_columns": _on_four(_columns),
    "all_gather_some": _on_some(all_gather((2, 3))),
    "all_gather_pairs": _on_pairs(all_gather((2, 3))),
    "reduce_scatter": _on_four(reduce_scatter(EVEN)),
    "reduce_scatter_uneven": _on_four(reduce_scatter(UNEVEN)),
    "reduce_scatter_holes": _on_four(reduce_scatter(HOLES, "max")),
    "reduce_scatter_columns": _on_four(_reduced_columns),
    "reduce_scatter_pairs": _on_pairs(reduce_scatter((3, 2), "min")),
    "all_reduce": _on_four(all_reduce((4, 3))),
    "all_reduce_uneven": _on_four(all_reduce((3, 3))),
    "all_reduce_few": _on_four(all_reduce((2,), combine="max")),
    "all_reduce_scalar": _on_four(all_reduce((), combine="min")),
    "all_reduce_empty": _on_four(all_reduce((0, 3))),
    "all_reduce_bucket": _on_four(all_reduce((3,), (2, 2), (), (0,), (5,))),
    "all_reduce_some": _on_some(all_reduce((5,))),
    "all_reduce_pairs": _on_pairs(all_reduce((5,), (3,))),
    "all_to_all": _on_four(all_to_all(lambda s, t: 2)),
    "all_to_all_uneven": _on_four(all_to_all(_irregular)),
    "all_to_all_transpose": _on_four(_transpose),
    "all_to_all_pairs": _on_pairs(all_to_all(_irregular)),
    "gather": _on_four(gather(2, UNEVEN)),
    "gather_holes": _on_four(gather(0, HOLES)),
    "scatter": _on_four(scatter(1, UNEVEN)),
    "scatter_holes": _on_four(scatter(0, HOLES)),
    "broadcast": _on_four(broadcast(3, (2, 3))),
    "broadcast_scalar": _on_four(broadcast(0, ())),
    "broadcast_pairs": _on_pairs(broadcast(1, (4,))),
    "reduce": _on_four(reduce_to(2, (3, 2))),
    "reduce_max": _on_four(reduce_to(0, (5,), "max")),
    "send_recv": _on_some(_send_recv),
    "slice": _on_four(_slice),
    "pad_sum": _on_four(_pads("sum")),
    "pad_max": _on_four(_pads("max")),
    "pad_min": _on_four(_pads("min")),
    "pad_nothing": _on_four(_nothing),
}
"""Every collective: even, uneven and empty parts, boxes, and groups of some devices."""
