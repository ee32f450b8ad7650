"""The driver: arenas are tensors of bytes; a called launch runs, or torch queues its work."""

from math import prod

import numpy as np
import torch

from flow_core.authoring import backends
from flow_torch.arrays import ALIGNMENT, DTYPES, TorchArray, typed
from flow_torch.plugin import cuda_devices


class Arena:
    """One allocation of device memory.

    Attributes:
        nbytes: its size in bytes.
    """

    def __init__(self, nbytes, device):
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        start = -raw.data_ptr() % ALIGNMENT
        self.nbytes, self._bytes = nbytes, raw[start : start + nbytes]

    def view(self, offset, shape, dtype):
        """Return the array that starts at an offset in bytes."""
        dtype = np.dtype(dtype)
        data = self._bytes[offset : offset + prod(shape) * dtype.itemsize]
        return TorchArray(typed(data, shape, DTYPES[dtype]), dtype)


class Event:
    """A point in a stream; all work is ordered, on CUDA devices by torch's default stream."""

    def wait(self):
        """Return at once, because all work is ordered."""


class Stream:
    """A queue that runs work in the order of the calls."""

    def __init__(self, device):
        self._device = device

    def record(self):
        """Return an event for all work queued so far."""
        return Event()

    def wait_event(self, event):
        """Make later work wait for an event of this driver or of another driver."""
        event.wait()

    def synchronize(self):
        """Wait for all queued work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Driver(backends.Driver):
    """One device: a CUDA device if there are any, else the CPU."""

    def __init__(self, device):
        self.device = device
        self._torch_device = torch.device("cpu")
        if cuda_devices():
            self._torch_device = torch.device("cuda", device.index)

    def allocate(self, nbytes):
        """Allocate the memory of a plan."""
        return Arena(nbytes, self._torch_device)

    def stream(self, name):
        """Create a stream."""
        return Stream(self._torch_device)

    def copy_in(self, target, source):
        """Copy a host array into a device array."""
        if self._torch_device.type == "cpu":
            np.copyto(target.host(), source)
        elif target.size:
            data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
            bytes_ = target.tensor.reshape(-1).view(torch.uint8)
            bytes_.copy_(torch.from_numpy(data if data.flags.writeable else data.copy()))

    def copy_out(self, source, target=None):
        """Copy a device array into a host array, by default into a new array."""
        tensor = source.tensor.cpu()
        found = TorchArray(tensor, source.dtype).host()
        if target is not None:
            np.copyto(target, found)
            return target
        return found.copy() if tensor is source.tensor else found

    def compile(self, launches):
        """Return one callable that runs the launches in order."""
        steps = tuple(launches)

        def run():
            for step in steps:
                step()

        return run

    def memory(self):
        """Return the number of free bytes of a CUDA device; None for the CPU."""
        if self._torch_device.type == "cpu":
            return None
        return torch.cuda.mem_get_info(self._torch_device)[0]
