"""What the driver needs of a device: Protocols, met by CuPy's and by a simulator on the host.

Addresses are integers.  Whatever is queued says which addresses it reads and writes, so that a
simulator can check the order of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flow_core.authoring.backends import Workbench
from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.program import Kernel
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Problem

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
        leads: elements between neighbouring rows of a, b and c as they are stored; 0 where rows
            follow each other.
        epilogue: what else is done in the same pass, a name of `EPILOGUES`.
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
    leads: tuple[int, int, int] = (0, 0, 0)
    epilogue: str = ""

    @property
    def saved_lead(self) -> int:
        """Elements of a row of what is saved for the backward pass, of a mask: bits."""
        step = 128 if self.epilogue.startswith("relu") else 8
        return -(-self.n // step) * step


EPILOGUES = (
    "", "bias", "relu_bias", "relu_bias_saved", "gelu_bias", "gelu_bias_saved", "relu_grad",
    "relu_grad_sum", "gelu_grad", "gelu_grad_sum", "sum_a", "sum_b",
)  # fmt: skip
"""What a product may do besides: bias and activation, saving what the backward pass needs (a mask
of bits for relu, the sum with the bias for gelu); the slope of an activation, and the sum over
rows of the result; the sum over k of one operand.  Gelu is the form with tanh."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Addresses of what a product works on.

    Attributes:
        a, b, c: the matrices.
        bias: a row that is added to each row of c, or where the sum goes.
        saved: for the backward pass; written or read.
        workspace, room: memory for partial results, and its bytes.
    """

    a: int
    b: int
    c: int
    bias: int = 0
    saved: int = 0
    workspace: int = 0
    room: int = 0


def touched_by(p: Product, o: Operands) -> Access:
    """The addresses that a product reads and writes.

    >>> touched_by(Product(2, 3, 4, False, False, "float32"), Operands(0, 100, 200)).reads
    ((0, 32), (100, 148))
    """
    size = as_dtype(p.dtype).itemsize
    stored = (
        (p.k, p.m) if p.transpose_a else (p.m, p.k),
        (p.n, p.k) if p.transpose_b else (p.k, p.n),
    )
    shapes = (*stored, (p.m, p.n))
    spans: list[Span] = []
    for start, (rows, columns), lead, step in zip(
        (o.a, o.b, o.c), shapes, p.leads, p.strides, strict=True
    ):
        last = (p.batch - 1) * step + (rows - 1) * (lead or columns) + columns
        spans.append((start, start + last * size))
    reads, writes = spans[:2], spans[2:]
    if o.bias:
        count = p.m if p.epilogue == "sum_a" else p.n
        made = "sum" in p.epilogue
        (writes if made else reads).append((o.bias, o.bias + count * size))
    if o.saved:
        nbytes = p.m * p.saved_lead * size
        if p.epilogue.startswith("relu"):
            nbytes = p.m * p.saved_lead // 8
        (writes if "saved" in p.epilogue else reads).append((o.saved, o.saved + nbytes))
    if o.workspace:
        writes.append((o.workspace, o.workspace + o.room))
    return Access(tuple(reads), tuple(writes))


@dataclass(frozen=True, slots=True)
class DnnCall:
    """A problem of cuDNN's at its addresses.

    Attributes:
        problem, plan: what is computed, by which plan.
        addresses: of what it reads and of what it writes.
        workspace: memory of the plan's size; 0 for none.
    """

    problem: Problem
    plan: str
    addresses: tuple[int, ...]
    workspace: int


class Hardware(Protocol):
    """One device.  Streams, events, graphs and functions are its own objects.

    Attributes:
        index: number of the device.
        architecture: such as "sm_90".
        threads: threads of a block.
        most_blocks: blocks of a launch at most; kernels walk over what is left.
        compute: the stream for kernels.
        numbers: copies of numbers of the host, by identity; see
            `flow_cuda.device.launch.host_number`.
        uploads: the pinned memory through which their values travel, a
            `flow_cuda.device.staging.Staging`.
    """

    index: int
    architecture: str
    threads: int
    most_blocks: int
    compute: Any
    numbers: dict[int, Any]
    uploads: Any

    @property
    def dnn(self) -> DnnPlans | None:
        """Plans of cuDNN's graphs; None where there is no cuDNN."""

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

    def lane(self, name: str) -> Any:
        """The stream of a name, made at its first use; ``compute`` for the empty one."""

    def reach(self, other: int) -> None:
        """Lets copies from the device of that number come directly, where the machine can."""

    def launch(
        self,
        stream: Any,
        function: Function,
        blocks: int,
        threads: int,
        arguments: Any,
        access: Access,
    ) -> None:
        """Queues a kernel with its `flow_cuda.device.launch.Arguments`."""

    def copy(self, stream: Any, target: int, source: int, nbytes: int) -> None:
        """Queues a copy between any two addresses: of the device, another one, or pinned memory."""

    def zero(self, stream: Any, target: int, nbytes: int) -> None:
        """Queues the clearing of memory."""

    def supports(self, product: Product, room: int) -> bool:
        """Whether it does a product in one pass, with so many bytes of workspace."""

    def product(self, stream: Any, product: Product, operands: Operands) -> None:
        """Queues matrix products."""

    def dnn_call(self, stream: Any, call: DnnCall, access: Access) -> None:
        """Queues a graph of cuDNN's."""

    def record(self, stream: Any) -> Any:
        """An event behind all that is queued; part of the capture while the stream is captured."""

    def wait(self, stream: Any, event: Any) -> None:
        """Queues the wait for an event of any device; an event of a capture draws the stream in."""

    def synchronize(self, event: Any) -> None:
        """Blocks the caller until an event has happened."""

    def host_writes(self, spans: Sequence[Span]) -> None:
        """Says that the caller is about to write pinned memory."""

    def host_reads(self, spans: Sequence[Span]) -> None:
        """Says that the caller is about to read pinned memory."""

    def begin_capture(self, stream: Any) -> None:
        """From now on work is recorded, not run."""

    def end_capture(self, stream: Any) -> Any:
        """The recorded graph, ready to replay; streams that were drawn in have been waited for."""

    def replay(self, stream: Any, graph: Any) -> None:
        """Queues a graph."""

    @property
    def workbench(self) -> Workbench:
        """What comms of other packages may do on it."""

    def uuid(self) -> str:
        """What tells the device apart from all others."""

    def handle(self, stream: Any) -> int:
        """A stream as other libraries take it."""

    def within(self, call: Callable[[], Any]) -> Any:
        """Calls a function with the device as the current one of the calling thread."""
