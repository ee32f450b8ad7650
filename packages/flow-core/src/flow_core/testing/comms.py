"""The kit for communicators (comms), which run exchanges between devices: subclass `CommKit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.arrays import Array, NumpyType
from flow_core.base.dtypes import ALL, DType, as_dtype
from flow_core.base.errors import PlanError
from flow_core.base.shapes import Shape
from flow_core.comm.exchange import COMBINE, Exchange, links_of, neutral
from flow_core.device import Arena, Comm, Driver
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import Available, load
from flow_core.sharding.topology import Device
from flow_core.testing.comm_cases import CASES, exchange_between, send_recv
from flow_core.testing.kit import Kit, Parameters


class CommKit(Kit):
    """Tests that a comm transfers, reduces and counts bytes as plans expect.

    The name in a `Gap` is that of the case's collective.  For a comm with one device per process,
    the kit runs in all processes, and each process checks the arrays on its own devices.

    Attributes:
        comm_name: name of the `CommSpec` under test.
        devices: the devices, of which at most four take part; cases with two groups need four.
        dtypes: element types that the comm must support.
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
        comm.attach(self.driver)
        return comm

    def driver(self, device: Device) -> Driver:
        """Return the driver of a device, which allocates and copies the kit's arrays."""
        found: Driver = self.once(("driver", device), lambda: self.shared_registry().driver(device))
        return found

    def allocate(self, comm: Comm, device: Device, nbytes: int) -> Arena:
        """Allocate memory for an array; override this for a comm with memory of its own."""
        return self.driver(device).allocate(nbytes)

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        """Run a test's body in this process; override this to run it in several processes."""
        body(self.comm())

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the parameters of a test: the cases, with each element type if it takes one."""
        cases = [name for name, case in CASES.items() if len(self.devices) >= case.least]
        names = cases if check in _PER_CASE else [self.comm_name]
        if check == "sums_in_place":
            names = [name for name in cases if name.startswith("all_reduce")]
        if check in _PER_DTYPE:
            return ((name, dtype) for name in names for dtype in self.dtypes)
        return ((name,) for name in names)

    # --------------------------------------------------------------------------------- tests

    def test_is_a_comm(self, name: str) -> None:
        """Check that the comm implements the protocol and connects the requested devices."""

        def body(comm: Comm) -> None:
            assert isinstance(comm, Comm)
            assert comm.name == name
            assert tuple(comm.devices) == self.devices
            assert comm.local
            assert set(comm.local) <= set(self.devices)
            assert dict(comm.sent()) == {}

        self.everywhere(body)

    def test_moves(self, name: str, dtype: str) -> None:
        """Check that outputs equal those computed by numpy and inputs are unchanged."""
        cases = CASES[name](self.devices, as_dtype(dtype))

        def body(comm: Comm) -> None:
            runs = [BoundExchange(self, comm, t, seed) for seed, t in enumerate(cases)]
            for run in runs:
                run.launch()
            for run in runs:
                run.check()

        self.everywhere(body)

    def test_is_bound_once(self, name: str) -> None:
        """Check that launches can be repeated, and that each reads the current inputs."""
        cases = CASES[name](self.devices, as_dtype("float32"))

        def body(comm: Comm) -> None:
            runs = [BoundExchange(self, comm, t, seed) for seed, t in enumerate(cases)]
            for step in range(3):
                for run in runs:
                    run.refill(100 + step)
                    run.launch()
                    run.check()

        self.everywhere(body)

    def test_sums_in_place(self, name: str) -> None:
        """Check all-reduces whose output is the device's input, on all or some of the devices."""
        cases = CASES[name](self.devices, as_dtype("float32"))

        def body(comm: Comm) -> None:
            for some in (1, 2):
                runs = [BoundExchange(self, comm, t, seed, some) for seed, t in enumerate(cases)]
                for step in range(3):
                    for run in runs:
                        run.refill(100 + step)
                        run.launch()
                        run.check()

        self.everywhere(body)

    def test_counts_what_it_sends(self, name: str) -> None:
        """Check that each launch counts the exchange's bytes per link, and binding sends none."""
        cases = CASES[name](self.devices, as_dtype("float32"))

        def body(comm: Comm) -> None:
            runs = [BoundExchange(self, comm, t, seed) for seed, t in enumerate(cases)]
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
        """Check that all-reduces return the same bits on all devices and at every launch."""
        shape = (1000,)
        everybody = [(device, shape) for device in self.devices[:4]]
        exchange = exchange_between(
            "bits", "all_reduce", everybody, everybody, dtype=as_dtype("float32")
        )
        rng = np.random.default_rng(5)
        data = [rng.normal(size=shape).astype("f4") for _ in everybody]

        def body(comm: Comm) -> None:
            run = BoundExchange(self, comm, exchange, 0)
            run.refill_with(data)
            found = []
            for _ in range(2):
                run.launch()
                found += [run.host(device, out) for device, out in run.local_outputs()]
            for other in found:
                np.testing.assert_array_equal(other, found[0])
            np.testing.assert_allclose(found[0], sum(data), rtol=1e-5, atol=1e-5)

        self.everywhere(body)

    def test_refuses_what_does_not_fit(self, name: str) -> None:
        """Check that binding missing, superfluous or wrongly typed arrays raises `PlanError`."""
        sender, receiver = self.devices[-1], self.devices[0]
        good = send_recv((sender, receiver), as_dtype("float32"))

        def bad(comm: Comm, device: Device) -> list[Any]:
            if device not in comm.local:
                return []
            rows = ((5,), np.dtype("f4")), ((4,), np.dtype("f8"))
            return [*(self.local_array(comm, device, *row) for row in rows), None]

        def body(comm: Comm) -> None:
            given = [self.local_array(comm, sender, (4,), np.dtype("f4"))]
            made = [self.local_array(comm, receiver, (4,), np.dtype("f4"))]
            inputs, outputs = bad(comm, sender), bad(comm, receiver)
            for array in inputs:
                with pytest.raises(PlanError, match="send_recv"):
                    comm.bind(good, [array], made)
            for array in outputs:
                with pytest.raises(PlanError, match="send_recv"):
                    comm.bind(good, given, [array])
            with pytest.raises(PlanError, match="2 inputs"):
                comm.bind(good, [*given, None], made)
            for wrong in (replace(good, collective="telepathy"), replace(good, combine="mean")):
                with pytest.raises(PlanError, match="send_recv"):
                    comm.bind(wrong, given, made)

        self.everywhere(body)

    def local_array(self, comm: Comm, device: Device, shape: Shape, dtype: NumpyType) -> Any:
        """Create an array with arbitrary contents; return None for a device of another process."""
        if device not in comm.local:
            return None
        nbytes = prod(shape) * dtype.itemsize
        whole = self.allocate(comm, device, nbytes)
        self.driver(device).copy_in(
            whole.view(0, (nbytes,), np.uint8), np.full(nbytes, 0x55, np.uint8)
        )
        return whole.view(0, shape, dtype)


_PER_CASE = ("moves", "is_bound_once", "counts_what_it_sends")
_PER_DTYPE = ("moves",)


class BoundExchange:
    """An exchange bound to arrays with random contents, which are the same in all processes.

    With ``in_place`` = n, every n-th output uses the array of the input on the same device.
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

    def _array(self, device: Device, type_: TensorType) -> Any:
        return self._kit.local_array(self._comm, device, type_.shape, type_.dtype.numpy)

    def host(self, device: Device, array: Any) -> Array:
        """Copy a device array to the host, after all launches."""
        return self._kit.driver(device).copy_out(array)

    def local_outputs(self) -> Iterator[tuple[Device, Any]]:
        """Yield the devices of this process with their outputs."""
        ends = zip(self._exchange.receivers, self.outputs, strict=True)
        return ((device, array) for device, array in ends if array is not None)

    def refill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.refill_with([_numbers(rng, t.shape, t.dtype) for t in self._exchange.inputs])

    def refill_with(self, data: Sequence[Array]) -> None:
        self._data = list(data)
        ends = zip(self._exchange.senders, self.inputs, self._data, strict=True)
        for device, array, value in ends:
            if array is not None:
                self._kit.driver(device).copy_in(array, value)

    def launch(self) -> None:
        for launch in self._launches:
            launch()

    def check(self) -> None:
        """Check all local outputs and inputs for bitwise equality."""
        t = self._exchange
        rows = [
            ("output", t.receivers, self.outputs, _reference(t, self._data)),
            ("input", t.senders, self.inputs, self._data),
        ]
        for noun, devices, arrays, values in rows:
            ends = zip(devices, arrays, values, strict=True)
            for index, (device, array, value) in enumerate(ends):
                kept = noun == "output" or index not in self._overwritten
                if array is not None and kept:
                    where = f"{noun} {index} of {t}"
                    np.testing.assert_array_equal(self.host(device, array), value, where)


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
