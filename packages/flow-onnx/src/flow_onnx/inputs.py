"""Match the blobs that a program passes with the inputs that a model declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto, ValueInfoProto

from flow_core.base.errors import ConfigError, SourceLine, UnsupportedError, nearest
from flow_onnx.types import element_of


def bound(
    declared: Sequence[ValueInfoProto],
    inputs: Sequence[Any] | Mapping[str, Any],
    attempted: str,
    at: SourceLine | None,
) -> dict[str, Any]:
    """Return the blobs by the names of the model's inputs.

    Raises:
        ConfigError: an input has no blob, or one of another element type or shape; or two sizes
            that have one name in the model differ.
        UnsupportedError: an input is not a tensor.
    """
    names = [value.name for value in declared]
    found = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
    if set(found) != set(names) or len(inputs) != len(names):
        odd = [name for name in found if name not in names]
        raise ConfigError(
            attempted,
            at=at,
            found=f"{len(inputs)} inputs" + (f": {', '.join(map(repr, inputs))}" if odd else ""),
            allowed=f"a blob for each of {', '.join(map(repr, names))}",
            hint=nearest(odd[0], names) if odd else None,
        )
    sizes: dict[str, int] = {}
    for value in declared:
        _check_type(value, found[value.name], attempted, at)
        _check_names(value, found[value.name], sizes, attempted, at)
    return found


def _check_type(value: ValueInfoProto, blob: Any, attempted: str, at: SourceLine | None) -> None:
    """Compare element type and sizes; booleans are int8 in jobs."""
    kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
    if kind != "tensor_type":
        found = f"the input {value.name!r} of the model, a {kind or 'value without a type'}"
        raise UnsupportedError(attempted, at=at, found=found, allowed="inputs that are tensors")
    shape, sizes = tuple(blob.shape), _sizes(value)
    fits = sizes is None or (
        len(sizes) == len(shape) and all(n in (None, m) for n, m in zip(sizes, shape, strict=True))
    )
    is_bool = tensor.elem_type == TensorProto.BOOL and blob.dtype.name in ("bool", "int8")
    if fits and (is_bool or element_of(blob.dtype) == tensor.elem_type):
        return
    allowed = TensorProto.DataType.Name(tensor.elem_type).lower()
    if sizes is not None:
        parts = ", ".join("any" if n is None else str(n) for n in sizes)
        allowed = f"shape ({parts}), {allowed}"
    raise ConfigError(
        attempted,
        at=at,
        found=f"a blob of shape {shape} for the input {value.name!r}, {blob.dtype}",
        allowed=allowed,
        hint="convert the blob with flow.cast" if fits else None,
    )


def _sizes(value: ValueInfoProto) -> list[int | None] | None:
    """Return the declared sizes, with None for open ones; None if there is no shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]


def _check_names(
    value: ValueInfoProto, blob: Any, sizes: dict[str, int], attempted: str, at: SourceLine | None
) -> None:
    """Compare the sizes that have names with those of earlier inputs, ``sizes``."""
    for d, size in zip(value.type.tensor_type.shape.dim, blob.shape, strict=False):
        if d.dim_param and sizes.setdefault(d.dim_param, size) != size:
            raise ConfigError(
                attempted,
                at=at,
                found=f"shape {tuple(blob.shape)} of the input {value.name!r}, where "
                f"{d.dim_param} is {sizes[d.dim_param]}",
                allowed="one size for each name of a size",
            )
