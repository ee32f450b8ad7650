"""A kernel as text: what a toolkit compiles, for a device or for the host."""

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
"""Element types as `source/prelude.h` calls them."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of CUDA C++.

    Attributes:
        name: unique for this content.
        parameters: (type, name) in order.
        body: between the braces.
        headers: files of ``source`` that it needs after the prelude.
        barriers: whether threads of a block wait for each other.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    body: str
    headers: tuple[str, ...] = ()
    barriers: bool = False

    def text(self) -> str:
        """The kernel as C++."""
        given = ", ".join(f"{kind} {name}" for kind, name in self.parameters)
        return f'extern "C" __global__ void {self.name}({given}) {{\n{self.body}\n}}\n'

    def host_entry(self) -> str:
        """A C function that runs the kernel on the host, of pointers to the arguments."""
        casts = (f"*({kind} *)a[{i}]" for i, (kind, _) in enumerate(self.parameters))
        return (
            f"static void run_{self.name}(void **a) {{ {self.name}({', '.join(casts)}); }}\n"
            f'extern "C" int host_{self.name}(void **a, unsigned blocks, unsigned threads) '
            f"{{ return run_grid(run_{self.name}, a, blocks, threads, {int(self.barriers)}); }}\n"
        )


class Scalars:
    """Numbers that a kernel takes as parameters, so that its code does not depend on them.

    Attributes:
        parameters: (type, name) of each.
        values: in the same order.
    """

    __slots__ = ("parameters", "values")

    def __init__(self) -> None:
        self.parameters: list[tuple[str, str]] = []
        self.values: list[int | float] = []

    def add(self, kind: str, value: int | float) -> str:
        """The name of a new parameter.

        >>> scalars = Scalars()
        >>> scalars.add("float", 0.5), scalars.add("i64", 2), scalars.values
        ('c0', 'c1', [0.5, 2])
        """
        name = f"c{len(self.values)}"
        self.parameters.append((kind, name))
        self.values.append(value)
        return name


def named(
    stem: str,
    parameters: Iterable[tuple[str, str]],
    body: str,
    headers: Sequence[str] = (),
    barriers: bool = False,
) -> Kernel:
    """A kernel whose name ends in a hash of its content.

    >>> named("nothing", (), "").name
    'nothing_e3b0c44298'
    """
    given = tuple(parameters)
    content = "".join((*(a + b for a, b in given), body, *headers))
    key = hashlib.sha256(content.encode()).hexdigest()[:10]
    return Kernel(f"{stem}_{key}", given, body, tuple(headers), barriers)


@functools.cache
def source(name: str) -> str:
    """The text of a file of ``flow_cuda/source``."""
    return (resources.files("flow_cuda.source") / name).read_text()


def unit(kernels: Sequence[Kernel], host: bool = False) -> str:
    """All that a compiler needs for some kernels, as one text."""
    headers = dict.fromkeys(h for kernel in kernels for h in kernel.headers)
    files = (*(("host.h",) if host else ()), "prelude.h", *headers)
    parts = [*map(source, files), *(k.text() for k in kernels)]
    if host:
        parts += [k.host_entry() for k in kernels]
    return "\n".join(parts)
