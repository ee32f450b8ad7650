"""The public names of ``oneflow``: their objects, and the names that share an object."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import oneflow
from flow_core.base.dtypes import DType

PACKAGES = ("flow_core", "flow_data", "flow_dist", "flow_fit", "flow_onnx", "flow_typing")
"""The packages whose objects ``oneflow`` exports."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A public function or class.

    Attributes:
        name: the name under which users find it, such as ``flow.nn.conv2d``.
        object: the function or class.
        others: other public names of the same object.
    """

    name: str
    object: Any
    others: tuple[str, ...]

    @property
    def namespace(self) -> str:
        """The name of the module that exports the object, such as ``flow.nn``."""
        return self.name.rpartition(".")[0]


def public_objects(
    module: types.ModuleType = oneflow, name: str = "flow"
) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a namespace and of the namespaces within, with their objects."""
    for member in dir(module):
        found = None if member.startswith("_") else getattr(module, member)
        if isinstance(found, types.ModuleType):
            if found.__name__ == f"{module.__name__}.{member}":
                yield from public_objects(found, f"{name}.{member}")
        elif _is_exported(found):
            yield f"{name}.{member}", found


def _is_exported(found: Any) -> bool:
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return False
    return str(found.__module__).startswith("flow_")


def entries() -> list[Entry]:
    """Return all public functions and classes, by name."""
    groups: dict[int, list[tuple[str, Any]]] = {}
    for name, found in public_objects():
        groups.setdefault(id(found), []).append((name, found))
    made = []
    for group in groups.values():
        names = sorted((name for name, _ in group), key=lambda n: _rank(n, group[0][1]))
        made.append(Entry(names[0], group[0][1], tuple(names[1:])))
    return sorted(made, key=lambda entry: entry.name)


def _rank(name: str, found: Any) -> tuple[bool, int, int, str]:
    """Prefer the name of the definition, then a short path."""
    namespace, _, last = name.rpartition(".")
    return last != getattr(found, "__name__", last), namespace.count("."), len(name), name


def element_types() -> list[tuple[str, DType]]:
    """Return the element types that ``flow`` exports, by name."""
    return [(f"flow.{n}", v) for n, v in sorted(vars(oneflow).items()) if isinstance(v, DType)]
