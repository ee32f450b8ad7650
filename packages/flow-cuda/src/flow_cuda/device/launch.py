"""Launches: kernels and other device work, bound to their arguments."""

from __future__ import annotations

import ctypes
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.program import C_TYPES, Kernel, make_kernel
from flow_cuda.cudnn.problems import Problem
from flow_cuda.device.arrays import DeviceArray
from flow_cuda.device.hardware import (
    Access,
    DnnCall,
    Function,
    Hardware,
    Operands,
    Product,
    Stream,
    product_access,
)

AXES = 8


def space(sizes: Sequence[int]) -> Array:
    """Return a ``Space`` struct of `source/prelude.h`.

    >>> space((2, 3))[:4].tolist()
    [6, 2, 2, 3]
    """
    return np.array([int(np.prod(sizes)), len(sizes), *_pad_row(sizes)], np.int64)


def strides(steps: Sequence[int]) -> Array:
    """Return a ``Strides`` struct of `source/prelude.h`."""
    return np.array(_pad_row(steps), np.int64)


def _pad_row(values: Sequence[int]) -> list[int]:
    if len(values) > AXES:
        raise ValueError(f"{len(values)} axes, the maximum is {AXES}")
    return [*values, *[0] * (AXES - len(values))]


class Arguments:
    """The arguments of a kernel in the form that ``cuLaunchKernel`` takes.

    Attributes:
        packed: the arguments as ctypes values.
        pointers: the addresses of the packed arguments.
    """

    __slots__ = ("packed", "pointers")

    def __init__(self, kernel: Kernel, values: Sequence[Any]) -> None:
        if len(values) != len(kernel.parameters):
            raise ValueError(
                f"{kernel.name} takes {len(kernel.parameters)} arguments, got {len(values)}"
            )
        self.packed = [
            _pack(kind, v) for (kind, _), v in zip(kernel.parameters, values, strict=True)
        ]
        self.pointers = (ctypes.c_void_p * max(1, len(self.packed)))(
            *(ctypes.addressof(kept) for kept in self.packed)
        )


_NUMBERS: Mapping[str, Any] = {
    "bool": ctypes.c_bool,
    "i8": ctypes.c_byte,
    "u8": ctypes.c_ubyte,
    "i64": ctypes.c_longlong,
    "u64": ctypes.c_ulonglong,
    "i32": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


def _pack(kind: str, value: Any) -> Any:
    if kind.endswith("*"):
        return ctypes.c_void_p(0 if value is None else value.address)
    if isinstance(value, np.ndarray):
        return (ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes())
    return _NUMBERS[kind](value)


def _access(kernel: Kernel, values: Sequence[Any]) -> Access:
    """Return what a kernel accesses: it reads const pointers, and reads and writes all others."""
    pointers = [
        (kind, v.span)
        for (kind, _), v in zip(kernel.parameters, values, strict=True)
        if kind.endswith("*") and v is not None and v.nbytes
    ]
    writes = tuple(span for kind, span in pointers if not kind.startswith("const"))
    return Access(tuple(span for _, span in pointers), writes)


class Queued(ABC):
    """Work to queue on a stream; a call of this object queues it on the compute stream."""

    __slots__ = ()
    hardware: Hardware
    splits: str = ""  # why the work cannot be part of a graph capture; empty if it can
    # Host numbers that must be up to date on the device before the work runs.
    numbers: tuple[HostNumber, ...] = ()

    @property
    def title(self) -> str:
        """The name of the work in reports."""
        return f"{type(self).__name__} of {sum(b - a for a, b in self.touched().writes)} bytes"

    @abstractmethod
    def queue(self, stream: Stream) -> None:
        """Queue the work on a stream of its device."""

    @abstractmethod
    def touched(self) -> Access:
        """Return the address ranges that the work reads and writes."""

    def __call__(self) -> None:
        self.queue(self.hardware.compute)


@dataclass(eq=False)
class HostNumber:
    """A 64-bit counter on the host with a copy on the device.

    The host increments its own number after each step of a program, and the device increments its
    copy after the last work that reads it.
    """

    host: Any  # a 0-d array
    device: DeviceArray  # an array of one element
    held: int | None = None  # value of the device copy after all queued work; None if it is unknown
    # The last compiled step to read the number in its first call, and the value it read.
    reader: tuple[weakref.ref[Any], int] | None = None

    def note_reader(self, step: Any, value: int) -> None:
        """Tell the previous reader to keep the number, if a step now reads the same value."""
        if self.reader is not None and self.reader[1] == value:
            earlier = self.reader[0]()
            if earlier is not None:
                earlier.kept.add(self)
        self.reader = weakref.ref(step), value


@dataclass(frozen=True, slots=True)
class MergeableCall:
    """A call of a device function that can share a launch with others of its kind.

    See `flow_cuda.device.batch`.
    """

    function: str  # the C++ call without its argument list
    headers: tuple[str, ...]  # headers that the function needs
    kinds: tuple[str, ...]  # C++ types of the arguments
    items: int  # number of items to process, one per thread or one per block
    blocks: bool = False  # whether one block processes one item


@dataclass(frozen=True, eq=False)
class KernelLaunch(Queued):
    """A kernel launch bound to its arguments."""

    hardware: Hardware
    function: Function
    blocks: int  # in the grid
    threads: int  # per block
    arguments: Arguments
    access: Access  # what the launch reads and writes
    kept: tuple[Any, ...] = ()  # arrays that must stay alive as long as the launch
    numbers: tuple[HostNumber, ...] = ()  # host numbers that the kernel reads
    # The call to merge with launches of the same kind; None if it cannot be merged.
    shared: MergeableCall | None = None

    @property
    def title(self) -> str:
        return self.function.kernel.name

    def queue(self, stream: Stream) -> None:
        self.hardware.launch(
            stream, self.function, self.blocks, self.threads, self.arguments, self.access
        )

    def touched(self) -> Access:
        return self.access


@dataclass(frozen=True, eq=False)
class CopyLaunch(Queued):
    """A copy between arrays."""

    hardware: Hardware
    target: DeviceArray
    source: DeviceArray

    def queue(self, stream: Stream) -> None:
        self.hardware.copy(stream, self.target.address, self.source.address, self.source.nbytes)

    def touched(self) -> Access:
        """The source as read and the target as written."""
        return Access((self.source.span,), (self.target.span,))


@dataclass(frozen=True, eq=False)
class UploadLaunch(Queued):
    """A copy from page-locked host memory that never changes."""

    hardware: Hardware
    target: DeviceArray
    pinned: Any

    def queue(self, stream: Stream) -> None:
        source = self.pinned.ctypes.data
        self.hardware.copy(stream, self.target.address, source, self.target.nbytes)

    def touched(self) -> Access:
        """The target array; host memory is never written."""
        return Access((), (self.target.span,))


@dataclass(frozen=True, eq=False)
class ZeroLaunch(Queued):
    """A launch that sets an array to zero."""

    hardware: Hardware
    target: DeviceArray

    def queue(self, stream: Stream) -> None:
        self.hardware.zero(stream, self.target.address, self.target.nbytes)

    def touched(self) -> Access:
        """The array, as written."""
        return Access((), (self.target.span,))


@dataclass(frozen=True, eq=False)
class ProductLaunch(Queued):
    """A matrix product of arrays; see `flow_cuda.device.hardware.Operands`."""

    hardware: Hardware
    product: Product
    a: DeviceArray
    b: DeviceArray
    c: DeviceArray
    bias: DeviceArray | None = None
    workspace: DeviceArray | None = None

    @property
    def title(self) -> str:
        """The sizes, the element type and the epilogue of the product."""
        p = self.product
        name = f"product {p.batch} x {p.m} x {p.n} x {p.k} {p.dtype}"
        return f"{name} {p.epilogue}".strip()

    def queue(self, stream: Stream) -> None:
        self.hardware.product(stream, self.product, self.operands())

    def touched(self) -> Access:
        """The matrices, and the operands of the epilogue."""
        return product_access(self.product, self.operands())

    def operands(self) -> Operands:
        given = (self.a, self.b, self.c, self.bias, self.workspace)
        a, b, c, bias, workspace = (0 if x is None else x.address for x in given)
        nbytes = 0 if self.workspace is None else self.workspace.nbytes
        return Operands(a, b, c, bias, workspace if nbytes else 0, nbytes)


@dataclass(frozen=True, eq=False)
class DnnLaunch(Queued):
    """A cuDNN graph bound to arrays."""

    hardware: Hardware
    problem: Problem  # the computation
    plan: str  # the name of the execution plan
    reads: Mapping[str, DeviceArray]  # by the names of the problem's tensors
    writes: Mapping[str, DeviceArray]  # likewise
    workspace: DeviceArray | None = None

    @property
    def title(self) -> str:
        return f"cudnn {self.problem.title}"

    def queue(self, stream: Stream) -> None:
        addresses = tuple(x.address for x in (*self.reads.values(), *self.writes.values()))
        workspace = 0 if self.workspace is None else self.workspace.address
        call = DnnCall(self.problem, self.plan, addresses, workspace)
        self.hardware.dnn_call(stream, call, self.touched())

    def touched(self) -> Access:
        """The inputs, the outputs and the workspace."""
        workspace = () if self.workspace is None else (self.workspace.span,)
        made = tuple(x.span for x in self.writes.values())
        return Access(tuple(x.span for x in self.reads.values()), (*made, *workspace))


def _hardware(values: Sequence[Any]) -> Hardware:
    for value in values:
        if isinstance(value, DeviceArray):
            return value.hardware
    raise ValueError("no argument of the kernel is a device array")


def launch(
    kernel: Kernel,
    items: int,
    *values: Any,
    blocks: bool = False,
    numbers: tuple[HostNumber, ...] = (),
    specialize: bool = True,
) -> KernelLaunch:
    """Return a launch of a kernel that distributes ``items`` over threads, or over blocks."""
    hardware = _hardware(values)
    wanted = items if blocks else -(-items // hardware.threads)
    if hardware.specializes and specialize:
        kernel = kernel.specialized(values)
    return KernelLaunch(
        hardware,
        hardware.function(kernel),
        max(1, min(wanted, hardware.max_blocks)),
        hardware.threads,
        Arguments(kernel, values),
        _access(kernel, values),
        tuple(values),
        numbers,
    )


@dataclass(frozen=True, slots=True)
class Read:
    """A read-only kernel argument; its array is None for an absent optional argument."""

    array: DeviceArray | None
    kind: str = ""  # C++ element type, if it differs from that of the array


@dataclass(frozen=True, slots=True)
class Write:
    """A written argument with C++ element type ``kind``; its array is None if it is absent."""

    array: DeviceArray | None
    kind: str


@dataclass(frozen=True, slots=True)
class Struct:
    """A kernel argument passed by value as a struct of 8-byte numbers."""

    kind: str  # C++ name of the struct
    packed: Any  # the bytes of the struct, as an array


def _c_argument(value: Any) -> tuple[str, Any]:
    """Return the C++ type of an argument and the value to pack."""
    if isinstance(value, Read):
        own = value.kind or C_TYPES[as_dtype(value.array.dtype).name]  # type: ignore[union-attr]
        return f"const {own} *", value.array
    if isinstance(value, Write):
        return f"{value.kind} *", value.array
    if isinstance(value, DeviceArray):
        return f"{C_TYPES[as_dtype(value.dtype).name]} *", value
    if isinstance(value, Struct):
        return value.kind, value.packed
    if isinstance(value, Bits):
        return "u64", value.value
    if isinstance(value, Float32):
        return "float", value.value
    return ("i64", value) if isinstance(value, bool | int) else ("double", value)


@dataclass(frozen=True, slots=True)
class Float32:
    """A float32 kernel argument."""

    value: Any


@dataclass(frozen=True, slots=True)
class Bits:
    """A kernel argument given as the bit pattern of a number."""

    value: int


def call(
    function: str,
    # The header that defines the function, then the headers that this one needs.
    header: str | tuple[str, ...],
    types: Sequence[str],  # template arguments of the function
    *values: Any,  # the arguments: arrays to write, `Read`, `Struct`, `Bits`, integers, and floats
    items: int,  # number of items to process, one per thread or one per block
    blocks: bool = False,  # whether one block processes one item; its threads then synchronize
    numbers: tuple[HostNumber, ...] = (),  # host numbers that the kernel reads
    # Whether the function takes a ``Part``, so that launches can be merged.
    mergeable: bool = False,
) -> KernelLaunch:
    """Build a launch of a function in ``flow_cuda/source``."""
    typed = [_c_argument(value) for value in values]
    parameters = [(kind, f"a{i}") for i, (kind, _) in enumerate(typed)]
    template = f"<{', '.join(types)}>" if types else ""
    body = f"{function}{template}({', '.join(name for _, name in parameters)});"
    headers = (header,) if isinstance(header, str) else header
    kernel = make_kernel(function, parameters, body, headers, barriers=blocks)
    given, special = (value for _, value in typed), not mergeable
    made = launch(kernel, items, *given, blocks=blocks, numbers=numbers, specialize=special)
    if not mergeable:
        return made
    kinds = tuple(kind for kind, _ in typed)
    return replace(made, shared=MergeableCall(function + template, headers, kinds, items, blocks))


def advance(number: HostNumber) -> KernelLaunch:
    """Build a launch that increments the device copy of a host number."""
    return call("advance", "update.h", (), number.device, items=1)


def host_number(hardware: Hardware, host: Any) -> HostNumber:
    """Return the device copy of a 64-bit host number; all callers share one copy."""
    found: HostNumber | None = hardware.numbers.get(id(host))
    if found is None:
        memory = hardware.allocate(8)
        device = DeviceArray(memory, memory.address, (1,), np.dtype(np.int64), hardware)
        found = hardware.numbers[id(host)] = HostNumber(host, device)
    return found
