"""Kernels as C++ source that compiles for a device and for the host."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

C_TYPES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "float",
    "float64": "double",
    "int8": "i8",
    "uint8": "u8",
    "char": "i8",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}
"""C++ names of the element types, as defined in `source/prelude.h`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A CUDA C++ kernel.

    Attributes:
        name: unique name derived from the content.
        parameters: (type, name) of each parameter, in order.
        body: the text between the braces of the function.
        headers: files of ``source`` that the kernel includes after the prelude.
        barriers: whether threads of a block synchronize.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    body: str
    headers: tuple[str, ...] = ()
    barriers: bool = False

    def text(self) -> str:
        """Return the C++ source of the kernel."""
        given = ", ".join(f"{kind} {name}" for kind, name in self.parameters)
        return f'extern "C" __global__ void {self.name}({given}) {{\n{self.body}\n}}\n'

    def host_call(self) -> str:
        """Return a C++ function that calls the kernel once, given pointers to arguments."""
        casts = (f"*({kind} *)a[{i}]" for i, (kind, _) in enumerate(self.parameters))
        return f"static void run_{self.name}(void **a) {{ {self.name}({', '.join(casts)}); }}\n"

    def host_entry(self) -> str:
        """Return a C function that runs the kernel on the host, given pointers to arguments."""
        head = f'extern "C" int host_{self.name}(void **a, unsigned blocks, unsigned threads) '
        return (
            f"{self.host_call()}{head}"
            f"{{ return run_grid(run_{self.name}, a, blocks, threads, {int(self.barriers)}); }}\n"
        )


class Scalars:
    """Numbers passed to a kernel as parameters, so that the source does not depend on the numbers.

    Attributes:
        parameters: (type, name) of the parameter for each number.
        values: the values, in the same order.
    """

    __slots__ = ("parameters", "values")

    def __init__(self) -> None:
        self.parameters: list[tuple[str, str]] = []
        self.values: list[int | float] = []

    def add(self, kind: str, value: int | float) -> str:
        """Add a parameter and return its name.

        >>> scalars = Scalars()
        >>> scalars.add("float", 0.5), scalars.add("i64", 2), scalars.values
        ('c0', 'c1', [0.5, 2])
        """
        name = f"c{len(self.values)}"
        self.parameters.append((kind, name))
        self.values.append(value)
        return name


def make_kernel(
    stem: str,
    parameters: Iterable[tuple[str, str]],
    body: str,
    headers: Sequence[str] = (),
    barriers: bool = False,
) -> Kernel:
    """Return a kernel whose name ends in a hash of its content.

    >>> make_kernel("nothing", (), "").name
    'nothing_e3b0c44298'
    """
    given = tuple(parameters)
    content = "".join((*(a + b for a, b in given), body, *headers))
    key = hashlib.sha256(content.encode()).hexdigest()[:10]
    return Kernel(f"{stem}_{key}", given, body, tuple(headers), barriers)


@functools.cache
def source(name: str) -> str:
    """Return the text of a file of ``flow_cuda/source``."""
    return (resources.files("flow_cuda.source") / name).read_text()


def translation_unit(kernels: Sequence[Kernel], host: bool = False) -> str:
    """Return the text of one translation unit with the kernels and the headers they need."""
    headers = dict.fromkeys(h for kernel in kernels for h in kernel.headers)
    files = (*(("host.h", "models.h") if host else ()), "prelude.h", *headers)
    parts = [*map(source, files), *(k.text() for k in kernels)]
    if host:
        parts += [k.host_entry() for k in kernels]
    return "\n".join(parts)
