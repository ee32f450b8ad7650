"""A device type "opaque", whose memory the host can only copy, and sessions that use it.

Its kernels are numpy's, on the memory behind its arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from flow_core.base.config import Settings
from flow_core.builtin.numpy_driver import NumpyArena, NumpyDriver
from flow_core.device import Driver, Launch, Stream
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import (
    Available,
    BindContext,
    DeviceSpec,
    KernelQuery,
    KernelSpec,
    load,
)
from flow_core.sharding.topology import Device


class OpaqueArray:
    """An array with a shape and an element type, whose other uses are errors."""

    __slots__ = ("_memory", "dtype", "shape")

    def __init__(self, memory: Any) -> None:
        self._memory, self.shape, self.dtype = memory, memory.shape, memory.dtype

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError("the host used an array of a device")

    __array__ = __array_ufunc__ = __array_function__ = _refuse
    __getitem__ = __setitem__ = __len__ = __iter__ = __bool__ = __float__ = __int__ = _refuse
    __eq__ = _refuse  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"the host used .{name} of an array of a device")


class OpaqueArena:
    """Memory that only makes arrays."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self._arena = nbytes, NumpyArena(nbytes)

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> OpaqueArray:
        return OpaqueArray(self._arena.view(offset, shape, dtype))


class OpaqueDriver(Driver):
    """A driver that counts copies.

    Attributes:
        copies: calls of "in", of "out" into a given array, and of "new", which make an array.
    """

    def __init__(self, device: Device) -> None:
        self.device, self._host = device, NumpyDriver(device)
        self.copies: Counter[str] = Counter()

    def allocate(self, nbytes: int) -> OpaqueArena:
        return OpaqueArena(nbytes)

    def stream(self, name: str) -> Stream:
        return self._host.stream(name)

    def copy_in(self, target: OpaqueArray, source: Any) -> None:
        assert isinstance(source, np.ndarray)
        self.copies["in"] += 1
        self._host.copy_in(memory(target), source)

    def copy_out(self, source: OpaqueArray, target: Any = None) -> Any:
        self.copies["new" if target is None else "out"] += 1
        return self._host.copy_out(memory(source), target)

    def compile(self, launches: Any) -> Launch:
        return self._host.compile(launches)

    def memory(self) -> int | None:
        return None


def memory(array: Any) -> Any:
    """The memory behind an array of the device, else the array."""
    return array._memory if isinstance(array, OpaqueArray) else array


class OpaquePlugin:
    """The device type and its kernels.

    Args:
        core: the registry whose CPU kernels run.
        host_numbers: whether kernels read learning rates and step numbers in host memory.
    """

    FLOW_PLUGIN_API = "1.0"
    __name__ = "opaque"

    def __init__(self, core: Registry, host_numbers: bool = False) -> None:
        self._core, self._host_numbers = core, host_numbers

    def _numpy(self, query: KernelQuery) -> KernelSpec:
        return self._core.find_kernel(query, "cpu")

    def bind(self, ctx: BindContext) -> Any:
        numbers = self._core.ops[ctx.query.op].numbers if self._host_numbers else ()
        for index, array in enumerate(ctx.inputs):
            assert isinstance(array, OpaqueArray) != (index in numbers), ctx.query.op
        find = partial(self._core.find_kernel, device_type="cpu")
        inner = replace(
            ctx,
            query=replace(ctx.query, find=find),
            inputs=tuple(map(memory, ctx.inputs)),
            outputs=tuple(map(memory, ctx.outputs)),
            workspace=memory(ctx.workspace),
        )
        return load(self._numpy(inner.query).load)(inner)

    def workspace(self, query: KernelQuery) -> int:
        find = self._numpy(query).workspace
        return 0 if find is None else find(query)

    def flow_register_kernels(self) -> Iterator[KernelSpec]:
        yield KernelSpec("*", "opaque", self.bind, None, 0, self.workspace, "opaque")

    def flow_register_devices(self) -> list[DeviceSpec]:
        numbers = self._host_numbers
        return [DeviceSpec("opaque", lambda: Available(4), OpaqueDriver, host_numbers=numbers)]


OTHERS = ("flow-cuda", "flow-onednn", "flow-data")


def core_registry(**settings: Any) -> Registry:
    """Core alone."""
    return load_plugins(_settings(settings))


def opaque_registry(*extra: Any, host_numbers: bool = False, **settings: Any) -> Registry:
    """Core, the device type and more plugins."""
    plugin = OpaquePlugin(core_registry(), host_numbers)
    return load_plugins(_settings(settings), [plugin, *extra])


def _settings(changed: Any) -> Settings:
    return replace(Settings.from_env(), disabled_plugins=OTHERS, **changed)
