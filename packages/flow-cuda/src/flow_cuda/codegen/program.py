"""Kernels as C++ source that compiles for a device and for the host."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from flow_cuda.codegen.updates import HEADERS

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
    """A CUDA C++ kernel."""

    name: str  # unique, derived from the content
    parameters: tuple[tuple[str, str], ...]  # (type, name) of each parameter, in order
    body: str  # the text between the braces of the function
    headers: tuple[str, ...] = ()  # files of ``source`` that the kernel includes after the prelude
    barriers: bool = False  # whether threads of a block synchronize
    # (name, C++ value) of the parameters whose values are known at compile time.
    constants: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return the C++ source of the kernel; constants hide the parameters of their names."""
        known = dict(self.constants)
        given = ", ".join(
            f"{kind} {name}_unused" if name in known else f"{kind} {name}"
            for kind, name in self.parameters
        )
        fixed = "".join(
            f"const {kind} {name} = {known[name]};\n"
            for kind, name in self.parameters
            if name in known
        )
        return f'extern "C" __global__ void {self.name}({given}) {{\n{fixed}{self.body}\n}}\n'

    def specialized(self, values: Sequence[Any]) -> Kernel:
        """Return the kernel for the given sizes, strides and offsets.

        >>> kernel = make_kernel("fill", (("float *", "y"), ("i64", "n")), "y[n - 1] = 0;")
        >>> kernel.specialized((None, 5)).constants
        (('n', '5ll'),)
        """
        constants = tuple(
            (name, literal(value))
            for (kind, name), value in zip(self.parameters, values, strict=True)
            if kind in KNOWN
        )
        key = hashlib.sha256(repr((self.name, constants)).encode()).hexdigest()[:10]
        name = f"{self.name.rpartition('_')[0]}_{key}"
        return replace(self, name=name, constants=constants) if constants else self


KNOWN = ("i64", "Space", "Strides", "Window")
"""The types of parameters that `Kernel.specialized` makes constant."""


def literal(value: Any) -> str:
    """Return an integer, or a struct of integers, as a C++ expression.

    >>> literal(-(1 << 63)), literal(np.arange(3))
    ('(-9223372036854775807ll - 1)', '{0ll, 1ll, 2ll}')
    """
    if isinstance(value, np.ndarray):
        return "{" + ", ".join(literal(int(n)) for n in value) + "}"
    least = -(1 << 63)
    return f"({least + 1}ll - 1)" if value == least else f"{int(value)}ll"


class Scalars:
    """Numbers passed to a kernel as parameters, so that the source does not depend on them."""

    __slots__ = ("parameters", "values")

    def __init__(self) -> None:
        self.parameters: list[tuple[str, str]] = []  # (type, name) of the parameter for each number
        self.values: list[int | float] = []  # the values, in the same order

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
    """Return the text of a file of ``flow_cuda/source``, or of a header that is written."""
    if name in HEADERS:
        return HEADERS[name]()
    return (resources.files("flow_cuda.source") / name).read_text()


def translation_unit(kernels: Sequence[Kernel]) -> str:
    """Return the text of one translation unit with the kernels and the headers they need."""
    headers = dict.fromkeys(h for kernel in kernels for h in kernel.headers)
    parts = [*map(source, ("prelude.h", *headers)), *(k.text() for k in kernels)]
    return "\n".join(parts)
