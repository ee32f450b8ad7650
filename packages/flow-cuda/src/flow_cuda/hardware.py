"""What the driver needs of a device: Protocols, met by CuPy's and by a rehearsal on the host.

Addresses are integers.  Whatever is queued says which addresses it reads and writes, so that a
rehearsal can check the order of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flow_cuda.program import Kernel

Span = tuple[int, int]
"""Addresses from the first byte up to behind the last."""


@dataclass(frozen=True, slots=True)
class Access:
    """What queued work touches."""

    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


class Memory(Protocol):
    """One allocation, freed when nobody holds it."""

    address: int
    nbytes: int


class Function(Protocol):
    """A compiled kernel.

    Attributes:
        kernel: what it was compiled from.
    """

    @property
    def kernel(self) -> Kernel:
        """What it was compiled from."""


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of matrix products ``c = alpha op(a) op(b)`` of C-contiguous matrices.

    Attributes:
        m, n, k: rows of c, columns of c, and what is summed over.
        transpose_a, transpose_b: whether a is (k, m), b is (n, k).
        batch: how many products.
        dtype: element type of all three; half types are accumulated in float32.
        alpha: a factor.
        strides: elements between the matrices of neighbouring products, of a, b and c; 0 repeats.
        tf32: whether float32 may be rounded to 10 bits of mantissa for the tensor cores.
    """

    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    dtype: str
    batch: int = 1
    alpha: float = 1.0
    strides: tuple[int, int, int] = (0, 0, 0)
    tf32: bool = False


class Hardware(Protocol):
    """One device.  Streams, events, graphs and functions are its own objects.

    Attributes:
        index: number of the device.
        architecture: such as "sm_90".
        threads: threads of a block.
        most_blocks: blocks of a launch at most; kernels walk over what is left.
        compute: the stream for kernels.
        numbers: copies of numbers of the host, by identity; see `flow_cuda.launch.host_number`.
    """

    index: int
    architecture: str
    threads: int
    most_blocks: int
    compute: Any
    numbers: dict[int, Any]

    def allocate(self, nbytes: int) -> Memory:
        """One allocation, aligned to 256 bytes."""

    def pinned(self, nbytes: int) -> Any:
        """A uint8 array of page-locked host memory."""

    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""

    def function(self, kernel: Kernel) -> Function:
        """A kernel, compiled once."""

    def stream(self, name: str) -> Any:
        """A new stream."""

    def launch(
        self,
        stream: Any,
        function: Function,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        """Queues a kernel with its `flow_cuda.launch.Arguments`."""

    def copy(self, stream: Any, target: int, source: int, nbytes: int) -> None:
        """Queues a copy between any two addresses, of the device or of pinned memory."""

    def zero(self, stream: Any, target: int, nbytes: int) -> None:
        """Queues the clearing of memory."""

    def product(self, stream: Any, product: Product, a: int, b: int, c: int) -> None:
        """Queues matrix products."""

    def record(self, stream: Any) -> Any:
        """An event behind all that is queued."""

    def wait(self, stream: Any, event: Any) -> None:
        """Queues the wait for an event."""

    def synchronize(self, event: Any) -> None:
        """Blocks the caller until an event has happened."""

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Says that the caller is about to write pinned memory."""

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Says that the caller is about to read pinned memory."""

    def begin_capture(self, stream: Any) -> None:
        """From now on work is recorded, not run."""

    def end_capture(self, stream: Any) -> Any:
        """The recorded graph, ready to replay."""

    def replay(self, stream: Any, graph: Any) -> None:
        """Queues a graph."""

    def uuid(self) -> str:
        """What tells the device apart from all others."""

    def handle(self, stream: Any) -> int:
        """A stream as other libraries take it."""

    def within(self, call: Callable[[], Any]) -> Any:
        """Calls a function with the device as the current one of the calling thread."""
