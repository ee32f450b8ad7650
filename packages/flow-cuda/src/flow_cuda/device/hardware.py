"""Protocols of a device, which the CuPy device and the simulated device implement.

Addresses are integers.  Every queued operation declares the addresses that it reads and writes, so
that a simulator can check the synchronization of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from flow_core.authoring.backends import DeviceCopier
from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.program import Kernel
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Problem

Stream: TypeAlias = Any
Event: TypeAlias = Any
CapturedGraph: TypeAlias = Any
"""Opaque objects of the implementation (CuPy or the simulator), which the driver only passes on."""

T = TypeVar("T")

Span = tuple[int, int]
"""A half-open address range."""


@dataclass(frozen=True, slots=True)
class Access:
    """The address ranges that queued work reads and writes."""

    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


class Memory(Protocol):
    """One allocation, freed when the last reference to it is dropped."""

    address: int
    nbytes: int


class Function(Protocol):
    """A compiled kernel.

    Attributes:
        kernel: the source that it was compiled from.
    """

    @property
    def kernel(self) -> Kernel:
        """The source that it was compiled from."""


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of matrix products ``c = alpha op(a) op(b)`` of C-contiguous matrices."""

    m: int  # rows of c
    n: int  # columns of c
    k: int  # the reduction dimension
    transpose_a: bool  # whether a is stored as (k, m)
    transpose_b: bool  # whether b is stored as (n, k)
    dtype: str  # element type of a and b; 16-bit types are accumulated in float32
    batch: int = 1  # number of products
    alpha: float = 1.0  # scale factor
    # Elements between consecutive matrices of the batch, for a, b and c; 0 broadcasts.
    strides: tuple[int, int, int] = (0, 0, 0)
    # Whether float32 may be rounded to TF32 (10 mantissa bits) for the tensor cores.
    tf32: bool = False
    # Leading dimensions (elements between consecutive rows) of a, b and c; 0 for contiguous rows.
    leads: tuple[int, int, int] = (0, 0, 0)
    epilogue: str = ""  # the operation fused into the product; one of `EPILOGUES`
    # Whether c has the type in which products are accumulated, instead of ``dtype``.
    wide: bool = False

    @property
    def accumulated(self) -> str:
        """The type in which products are accumulated."""
        return as_dtype(self.dtype).accumulate.name

    @property
    def dtypes(self) -> tuple[str, str, str]:
        return self.dtype, self.dtype, self.accumulated if self.wide else self.dtype


EPILOGUES = ("", "bias", "relu_bias", "gelu_bias", "sum_a", "sum_b")
"""The operations that a product can fuse: a bias and an activation, or the sum of one operand over
k. GELU is the tanh approximation."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Addresses of the operands of a product."""

    a: int
    b: int
    c: int
    bias: int = 0  # the row added to each row of c, or the destination of the epilogue's sum
    workspace: int = 0
    workspace_bytes: int = 0


def product_access(p: Product, o: Operands) -> Access:
    """Return the address ranges that a product reads and writes.

    >>> product_access(Product(2, 3, 4, False, False, "float32"), Operands(0, 100, 200)).reads
    ((0, 32), (100, 148))
    """
    sizes = [as_dtype(dtype).itemsize for dtype in p.dtypes]
    stored = (
        (p.k, p.m) if p.transpose_a else (p.m, p.k),
        (p.n, p.k) if p.transpose_b else (p.k, p.n),
    )
    shapes = (*stored, (p.m, p.n))
    spans: list[Span] = []
    for start, (rows, columns), lead, step, size in zip(
        (o.a, o.b, o.c), shapes, p.leads, p.strides, sizes, strict=True
    ):
        last = (p.batch - 1) * step + (rows - 1) * (lead or columns) + columns
        spans.append((start, start + last * size))
    reads, writes = spans[:2], spans[2:]
    if o.bias:
        count = p.m if p.epilogue == "sum_a" else p.n
        made = "sum" in p.epilogue
        (writes if made else reads).append((o.bias, o.bias + count * sizes[2]))
    if o.workspace:
        writes.append((o.workspace, o.workspace + o.workspace_bytes))
    return Access(tuple(reads), tuple(writes))


@dataclass(frozen=True, slots=True)
class DnnCall:
    """A cuDNN problem bound to addresses."""

    problem: Problem  # the computation
    plan: str  # the name of the execution plan
    addresses: tuple[int, ...]  # addresses of the inputs, then of the outputs
    workspace: int  # address of a workspace of the size that the plan requires; 0 for none


class Hardware(Protocol):
    """One device; its streams, events, graphs and functions are opaque to callers.

    Attributes:
        index: device number.
        architecture: the architecture, such as "sm_90".
        threads: number of threads per block.
        most_blocks: maximum number of blocks per launch; kernels loop over the remaining items.
        specializes: whether kernels are compiled for the sizes and strides of each launch.
        compute: the stream for kernels.
        numbers: device copies of host numbers, keyed by object identity; see
            `flow_cuda.device.launch.host_number`.
        uploads: the `flow_cuda.device.staging.Staging` that transfers the values of host numbers.
        allocations: number of allocations of device and page-locked memory so far.
    """

    index: int
    architecture: str
    threads: int
    max_blocks: int
    specializes: bool
    compute: Any
    numbers: dict[int, Any]
    uploads: Any
    allocations: int

    @property
    def dnn(self) -> DnnPlans | None:
        """The planner of cuDNN graphs; None if cuDNN is not available."""

    def allocate(self, nbytes: int) -> Memory:
        """Allocate device memory, aligned to 256 bytes."""

    def pinned(self, nbytes: int) -> Array:
        """Return a uint8 array of page-locked host memory."""

    def free_bytes(self) -> int:
        """Return the number of bytes that can still be allocated."""

    def function(self, kernel: Kernel) -> Function:
        """Return a kernel; each kernel is compiled once, together with others."""

    def load(self) -> None:
        """Load all kernels requested so far, because a capture must not."""

    def stream(self, name: str) -> Stream:
        """Create a stream."""

    def launch(
        self,
        stream: Stream,
        function: Function,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        """Queue a kernel launch with its arguments, a `flow_cuda.device.launch.Arguments`."""

    def copy(self, stream: Stream, target: int, source: int, nbytes: int) -> None:
        """Queue a copy among the memory of this device and pinned host memory."""

    def zero(self, stream: Stream, target: int, nbytes: int) -> None:
        """Queue setting memory to zero."""

    def supports(self, product: Product, operands: Operands) -> bool:
        """Whether one kernel can compute the product, epilogue included, on these operands."""

    def product(self, stream: Stream, product: Product, operands: Operands) -> None:
        """Queue a matrix product."""

    def dnn_call(self, stream: Stream, call: DnnCall, access: Access) -> None:
        """Queue a cuDNN graph."""

    def record(self, stream: Stream) -> Event:
        """Record an event on a stream; if the stream is being captured, record it in the graph."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Make a stream wait for an event; an event of a capture adds the stream to the capture."""

    def synchronize(self, event: Event) -> None:
        """Block the caller until an event has completed."""

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Declare that the caller is about to write pinned memory."""

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Declare that the caller is about to read pinned memory."""

    def begin_capture(self, stream: Stream) -> None:
        """Begin graph capture on a stream."""

    def end_capture(self, stream: Stream) -> CapturedGraph:
        """End the capture and return the executable graph; forked streams must have been joined."""

    def replay(self, stream: Stream, graph: CapturedGraph) -> None:
        """Queue a graph launch."""

    @property
    def copier(self) -> DeviceCopier:
        """The operations that communication backends may run on the device."""

    def uuid(self) -> str:
        """Return the unique identifier of the device."""

    def handle(self, stream: Stream) -> int:
        """Return the native handle of a stream, which other libraries take."""

    def within(self, call: Callable[[], T]) -> T:
        """Call a function with this device current in the calling thread."""
