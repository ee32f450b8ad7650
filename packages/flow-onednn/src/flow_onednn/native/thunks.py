"""C functions that unpack the arguments of calls; see `calls.c`."""

from __future__ import annotations

import re
from collections.abc import Iterator

DECLARED = re.compile(r"\b(void|int|long) (\w+)\(([^)]*)\);")
"""The declaration of a function that can be a launch: it returns a status, or nothing."""
MEMBERS = {"float": "f", "double": "d", "uint64_t": "u"}
"""Members of a `Slot` by type of the argument; other numbers are stored as ``long``."""


def member(type_: str) -> str:
    """Return the member of a `Slot` that holds an argument of a type.

    >>> member("const float *"), member("float"), member("int")
    ('p', 'f', 'l')
    """
    return "p" if "*" in type_ else MEMBERS.get(type_, "l")


def declared(cdef: str) -> str:
    """Return the declarations of the functions that unpack arguments.

    >>> declared("void half(float *x, int n);")
    'long call_half(const Slot *);'
    """
    return "\n".join(f"long call_{name}(const Slot *);" for _, name, _ in DECLARED.findall(cdef))


def defined(cdef: str) -> str:
    """Return the functions that unpack arguments.

    >>> print(defined("void half(float *x, int n);"))
    long call_half(const Slot *a) { half(a[0].p, (int)a[1].l); return 0; }
    """
    return "\n".join(_defined(*found) for found in DECLARED.findall(cdef))


def _defined(result: str, name: str, parameters: str) -> str:
    call = f"{name}({', '.join(_unpacked(parameters))})"
    body = f"{call}; return 0;" if result == "void" else f"return {call};"
    return f"long call_{name}(const Slot *a) {{ {body} }}"


def _unpacked(parameters: str) -> Iterator[str]:
    for k, parameter in enumerate(parameters.split(",")):
        type_ = re.sub(r"\w+$", "", parameter.strip()).strip()
        which = member(type_)
        yield f"a[{k}].p" if which == "p" else f"({type_})a[{k}].{which}"
