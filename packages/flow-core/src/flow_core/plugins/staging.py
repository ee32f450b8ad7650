"""A communicator (comm) for devices of any types: it stages data in host memory.

The comm copies whole device arrays to and from the host with the drivers' ``copy_out`` and
``copy_in``, and another comm performs the exchange between host arrays, like that of CPU devices.
The arrays of CPU devices take part without copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from flow_core.base.arrays import Array, DeviceArray
from flow_core.comm.described import Sparse, present
from flow_core.comm.exchange import DevicePair, Exchange, check_arrays
from flow_core.device import Arena, Comm, Driver, Launch, Scratch
from flow_core.ir.graph import TensorType
from flow_core.sharding.topology import Device


class StagedComm(Comm):
    """Comm of devices of any types.

    Staging memory is allocated when exchanges are bound; all exchanges of a stream share it.

    Args:
        name: name of the `CommSpec`.
        hosts: the comm that exchanges host arrays between the same devices.
        allocate: allocates host memory, given its number of bytes.
        shares: whether an input and an output of ``hosts`` may be the same array; an output that is
            a copy of an input then needs no array of its own.

    Attributes:
        devices: all devices that the comm connects.
        local: the devices of this process.
    """

    def __init__(
        self, name: str, hosts: Comm, allocate: Callable[[int], Arena], shares: bool
    ) -> None:
        self.name, self.devices, self.local = name, hosts.devices, hosts.local
        self.hosts, self._allocate, self._shares = hosts, allocate, shares
        self._drivers: dict[Device, Driver] = {}
        self._staging: dict[int, Scratch] = {}

    def attach(self, driver: Callable[[Device], Driver]) -> None:
        """Store the drivers that copy to and from the devices."""
        self._drivers = {device: driver(device) for device in self.local if not is_host(device)}

    def arena(self, device: Device, nbytes: int) -> Arena | None:
        """Allocate the memory of a plan on a CPU device as the comm of host arrays does."""
        return self.hosts.arena(device, nbytes) if is_host(device) else None

    def bind(
        self, exchange: Exchange, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]
    ) -> tuple[Launch, ...]:
        """Return launches that read the inputs, exchange them on the host and write the outputs.

        Raises:
            PlanError: The arrays do not match the exchange.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        staging = self._staging.setdefault(exchange.stream, Scratch(self._allocate))
        staging.reuse()
        copies = _copies(exchange) if self._shares else {}
        given, made = _host_arrays(exchange, inputs, outputs, staging, copies)
        return (
            *self._reads(exchange, inputs, given),
            *self.hosts.bind(exchange, given, made),
            *self._writes(exchange, outputs, made),
        )

    def _reads(
        self, exchange: Exchange, inputs: Sequence[DeviceArray], given: Sequence[Array]
    ) -> Iterator[Launch]:
        """Yield launches that copy the inputs on devices to the host."""
        for i, array in present(inputs):
            if given[i] is not array and given[i].size:
                yield partial(self._drivers[exchange.senders[i]].copy_out, array, given[i])

    def _writes(
        self, exchange: Exchange, outputs: Sequence[DeviceArray], made: Sequence[Array]
    ) -> Iterator[Launch]:
        """Yield launches that copy the outputs from the host to their devices."""
        for i, array in present(outputs):
            if made[i] is not array and made[i].size:
                yield partial(self._drivers[exchange.receivers[i]].copy_in, array, made[i])

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the bytes sent between devices so far, by (from, to)."""
        return self.hosts.sent()


def _host_arrays(
    exchange: Exchange,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    staging: Scratch,
    copies: Mapping[int, int],
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return host arrays for all inputs and outputs: CPU arrays themselves, staging for others.

    An output that is a copy of an input, as in ``copies``, shares that input's host array if at
    least one of the two is not on a CPU.  Devices of other processes have no arrays.
    """
    shared = {
        source: outputs[target]
        for target, source in copies.items()
        if is_host(exchange.receivers[target])
    }
    given = _hosts(exchange.senders, exchange.inputs, inputs, shared, staging)
    shared = {target: given[source] for target, source in copies.items()}
    return given, _hosts(exchange.receivers, exchange.outputs, outputs, shared, staging)


def _hosts(
    devices: Sequence[Device],
    types: Sequence[TensorType],
    arrays: Sequence[Any],
    shared: Mapping[int, Array],
    staging: Scratch,
) -> Sequence[Any]:
    """Return the host arrays of one end of an exchange, some of which are given."""
    found: dict[int, Any] = {}
    for i, array in present(arrays):
        host = array if is_host(devices[i]) else shared.get(i)
        if host is None:
            host = staging.array(types[i].shape, types[i].dtype.numpy)
        found[i] = host
    return Sparse(len(arrays), found)


def _copies(exchange: Exchange) -> dict[int, int]:
    """Return the index of each output that is a copy of a whole input, with that input's index."""
    parts = Counter(block.target for block in exchange.blocks)
    parts.update(index for index, _ in exchange.fills)
    return {
        block.target: block.source
        for block in exchange.blocks
        if parts[block.target] == 1
        and exchange.inputs[block.source].shape == block.size
        and exchange.outputs[block.target].shape == block.size
    }


def is_host(device: Device) -> bool:
    """Return whether the host reads and writes the arrays of a device directly."""
    return device.type == "cpu"
