"""Parse and check the options of ``flow.onnx.export``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import defs

from flow_core.authoring.specs import TensorType
from flow_core.base.errors import ConfigError, SourceLine, nearest

DEFAULT_OPSET = 18
"""The first opset in which the axes of all reductions are inputs; ONNX Runtime 1.14 has it."""

OPSETS = range(11, min(defs.onnx_opset_version(), 23) + 1)
"""The opsets that the emitters support."""

DOMAIN = ("flow", 1)
"""Domain and version of unconverted ops."""

Opset = tuple[str, int]
Sizes = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Checked export options."""

    opset: int = DEFAULT_OPSET  # version of the ONNX operators
    extra: tuple[Opset, ...] = ()  # additional domains and their versions
    keep: bool = False  # whether the model keeps ops without an equivalent unconverted
    # Overridden shapes of inputs, by input name; an open size is a name.
    sizes: Mapping[str, Sizes] | None = None
    external: bool = False  # whether large weights are stored in an external data file

    @property
    def domain(self) -> Opset:
        """Domain and version of unconverted ops."""
        return self.extra[0] if self.extra else DOMAIN


class Checker:
    """A checker of options, whose errors name the line of the user's program."""

    def __init__(self, attempted: str, at: SourceLine | None) -> None:
        self.attempted = attempted
        self.at = at

    def wrong(self, found: str, allowed: str, hint: str | None = None) -> ConfigError:
        """Return the error for an invalid option."""
        return ConfigError(self.attempted, at=self.at, found=found, allowed=allowed, hint=hint)

    def opset(self, value: Any) -> int:
        """Return the checked opset version; None and 0 stand for the default."""
        if not value:
            return DEFAULT_OPSET
        if isinstance(value, bool) or not isinstance(value, int) or value not in OPSETS:
            allowed = f"{OPSETS[0]} to {OPSETS[-1]} (the default is {DEFAULT_OPSET})"
            raise self.wrong(f"opset={value!r}", allowed)
        return value

    def extra(self, value: Any) -> tuple[Opset, ...]:
        """Return the additional domains, which are given as pairs or as ``OperatorSetIdProto``."""
        if value is None:
            return ()
        if isinstance(value, int | str) or not isinstance(value, Iterable):
            raise self._no_domains(value)
        return tuple(self._domain(entry) for entry in value)

    def _domain(self, entry: Any) -> Opset:
        record = isinstance(entry, onnx.OperatorSetIdProto)
        pair = (entry.domain, entry.version) if record else entry
        fits = isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], str)
        if not fits or not isinstance(pair[1], int) or pair[0] in ("", "ai.onnx") or pair[1] < 1:
            raise self._no_domains(entry)
        return pair[0], pair[1]

    def _no_domains(self, value: Any) -> ConfigError:
        allowed = "a list of (domain, version) pairs, without ONNX's own domain"
        return self.wrong(f"extra_opset={value!r:.60}", allowed, 'extra_opset=[("my.ops", 1)]')

    def sizes(self, value: Any, inputs: Mapping[str, TensorType]) -> dict[str, Sizes]:
        """Return the overridden shapes of inputs, in which each open size has a name."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(f"shape_override={value!r:.60}", "a dict of shapes by input name")
        return {name: self._shape(name, shape, inputs) for name, shape in value.items()}

    def _shape(self, name: Any, shape: Any, inputs: Mapping[str, TensorType]) -> Sizes:
        if name not in inputs:
            found = f"shape_override for {name!r}"
            known = ", ".join(map(repr, inputs)) or "none, as the job has no inputs"
            raise self.wrong(found, f"inputs of the model: {known}", nearest(str(name), inputs))
        rank = len(inputs[name].shape)
        fits = isinstance(shape, Sequence) and not isinstance(shape, str) and len(shape) == rank
        if not fits or not all(map(_is_size, shape)):
            found = f"shape_override={{{name!r}: {shape!r}}} for {inputs[name]}"
            allowed = f"{rank} sizes of at least 1, each of which may be a name, None or -1"
            raise self.wrong(found, allowed)
        return tuple(f"{name}_{i}" if n in (None, -1) else n for i, n in enumerate(shape))


def _is_size(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    number = isinstance(value, int) and not isinstance(value, bool)
    return value is None or (number and (value >= 1 or value == -1))
