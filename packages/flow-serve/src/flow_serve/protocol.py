"""The KServe v2 inference protocol: bodies of requests and responses, in JSON or binary form.

A body starts with a JSON object.  With the binary tensor extension, the header
``Inference-Header-Content-Length`` gives its length, and the bytes of tensors follow: little-endian
elements in row-major order, in the order of the tensors whose parameter ``binary_data_size`` gives
their number of bytes.

Sizes that a client states are compared with the model and with the body before anything of that
size is allocated.  Source: https://github.com/kserve/open-inference-protocol and the binary tensor
data extension of Triton Inference Server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np

from flow_core.base.errors import nearest, shown
from flow_serve.info import OPEN, ModelInfo, TensorInfo
from flow_serve.settings import Refused

LARGEST_JSON = 8 << 20
"""Bytes of the JSON object of a request; a parsed object takes up to 30 times as much."""
_TENSOR_KEYS = {"name", "shape", "datatype", "data", "parameters"}
_REQUEST_KEYS = {"id", "parameters", "inputs", "outputs"}
_LONGEST_ID = 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request."""

    id: str  # echoed in the response; "" if there is none
    rows: int  # the size of the first axis of all inputs; 1 for a model of fixed shapes
    arrays: tuple[memoryview, ...]  # the bytes of the inputs, in the order of the model
    outputs: tuple[tuple[int, bool], ...]  # index and binary form of each requested output


def read_request(body: bytes, head: str | None, model: ModelInfo) -> Request:
    """Read the body of a request for a model.

    Args:
        head: the header ``Inference-Header-Content-Length``, None if there is none.

    Raises: Refused: the body is not valid, or does not fit the model.
    """
    content, tail = _split(body, head)
    _only(content, _REQUEST_KEYS, "the request")
    name = content.get("id", "")
    if not isinstance(name, str) or len(name) > _LONGEST_ID:
        _invalid(f"id {shown(name)}", f"a text of at most {_LONGEST_ID} characters")
    parameters = _parameters(content, "the request", {"binary_data_output"})
    binary = _flag(parameters, "binary_data_output", False)
    outputs = tuple(_outputs(content.get("outputs"), binary, model))
    given = dict(_named(content.get("inputs"), "inputs", model.inputs))
    missing = [tensor.name for tensor in model.inputs if tensor.name not in given]
    if missing:
        _invalid(f"no input {missing[0]!a}", _names(model.inputs))
    rows = _rows(given, model)
    found: dict[str, memoryview] = {}
    for key, tensor in given.items():  # in the order of the binary data
        info = next(t for t in model.inputs if t.name == key)
        found[key], tail = _array(tensor, info, rows, tail)
    if tail:
        _invalid(f"{len(tail)} bytes behind the tensors", "the bytes that binary_data_size names")
    return Request(name, rows, tuple(found[t.name] for t in model.inputs), outputs)


def write_response(
    model: ModelInfo, request: Request, outputs: Sequence[memoryview], rows: int
) -> tuple[bytes, tuple[memoryview, ...]]:
    """Return the JSON of a response, and the binary data that follow it.

    Raises: Refused: a number that is not finite was requested as JSON.
    """
    tensors, tail = [], []
    for index, binary in request.outputs:
        info, data = model.outputs[index], outputs[index]
        tensor: dict[str, Any] = info.metadata | {"shape": list(info.sized(rows))}
        if binary:
            tensor["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            tensor["data"] = _numbers(info, data)
        tensors.append(tensor)
    response = {"model_name": model.name, "model_version": model.version, "outputs": tensors}
    if request.id:
        response["id"] = request.id
    return json.dumps(response, separators=(",", ":")).encode(), tuple(tail)


def _numbers(info: TensorInfo, data: memoryview) -> list[Any]:
    array = np.frombuffer(data, info.dtype)
    if info.datatype in ("FP16", "BF16"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Refused(
            "failed", f"output {info.name!a} has NaN or infinity, which JSON lacks; next: request "
            "binary_data"
        )  # fmt: skip
    found: list[Any] = array.tolist()
    return found


def _invalid(found: str, allowed: str) -> NoReturn:
    raise Refused("invalid_request", f"found: {found}; allowed: {allowed}")


def _split(body: bytes, head: str | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object of a body and the bytes behind it."""
    length = len(body)
    if head is not None:
        if not (head.isascii() and head.isdigit() and len(head) < 20 and int(head) <= length):
            _invalid(
                f"Inference-Header-Content-Length {head!a:.40} of a body of {length} bytes",
                "the length of the JSON object",
            )
        length = int(head)
    if length > LARGEST_JSON:
        raise Refused(
            "too_large", f"found: {length} bytes of JSON; allowed: {LARGEST_JSON}, and binary data"
        )
    try:
        content = json.loads(body[:length].decode(), parse_constant=_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError, JSONDecodeError
        _invalid(f"{type(error).__name__}: {error}"[:200], "a JSON object in UTF-8")
    if not isinstance(content, dict):
        _invalid(shown(content), "a JSON object")
    return content, memoryview(body)[length:]


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _only(content: Mapping[str, Any], known: set[str], what: str) -> None:
    odd = sorted(content.keys() - known)
    if odd:
        _invalid(f"{odd[0]!a:.80} in {what}", ", ".join(sorted(known)))


def _parameters(content: Mapping[str, Any], what: str, known: set[str]) -> dict[str, Any]:
    """Return the parameters of an object; those of other extensions are refused."""
    found = content.get("parameters", {})
    if not isinstance(found, dict):
        _invalid(f"parameters {shown(found)} of {what}", "an object")
    _only(found, known, f"the parameters of {what}")
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        _invalid(f"{name} {shown(found)}", "true or false")
    return found


def _names(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(ascii(t.name) for t in tensors)


def _named(
    given: object, what: str, known: Sequence[TensorInfo]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tensors of a request with their names, each of which the model has once."""
    if not isinstance(given, list):
        _invalid(f"{what} {shown(given)}", "a list of objects")
    names, seen = {t.name for t in known}, set()
    for tensor in given:
        name = tensor.get("name") if isinstance(tensor, dict) else None
        if not isinstance(name, str) or name not in names or name in seen:
            near = nearest(name, names) if isinstance(name, str) and name not in seen else ""
            _invalid(f"{shown(name)} in {what}", f"each once: {_names(known)}; {near}".rstrip("; "))
        seen.add(name)
        yield name, tensor


def _outputs(given: object, binary: bool, model: ModelInfo) -> Iterator[tuple[int, bool]]:
    if given is None:
        yield from ((i, binary) for i in range(len(model.outputs)))
        return
    index = {tensor.name: i for i, tensor in enumerate(model.outputs)}
    for name, tensor in _named(given, "outputs", model.outputs):
        _only(tensor, {"name", "parameters"}, f"output {name!a}")
        parameters = _parameters(tensor, f"output {name!a}", {"binary_data"})
        yield index[name], _flag(parameters, "binary_data", binary)


def _rows(given: Mapping[str, dict[str, Any]], model: ModelInfo) -> int:
    """Check the shapes of all inputs; return their number of rows."""
    found: dict[str, int] = {}
    for info in model.inputs:
        tensor = given[info.name]
        _only(tensor, _TENSOR_KEYS, f"input {info.name!a}")
        if tensor.get("datatype") != info.datatype:
            datatype = shown(tensor.get("datatype"))
            _invalid(f"datatype {datatype} of input {info.name!a}", info.datatype)
        shape = tensor.get("shape")
        if not (
            isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
        ):
            _invalid(f"shape {shown(shape)} of input {info.name!a}", "a list of sizes")
        if len(shape) != len(info.shape) or any(
            m not in (OPEN, n) for n, m in zip(shape, info.shape, strict=True)
        ):
            _invalid(f"shape {shown(shape)} of input {info.name!a}", f"{list(info.shape)}")
        if info.shape[:1] == (OPEN,):
            found[info.name] = shape[0]
    sizes = set(found.values())
    if len(sizes) > 1:
        _invalid(f"inputs of {', '.join(map(str, sorted(sizes)))} rows", "the same number of rows")
    rows = sizes.pop() if sizes else 1
    if found and not 1 <= rows <= model.rows:
        _invalid(f"{rows} rows", f"1 to {model.rows} rows per request")
    return rows


def _array(
    tensor: Mapping[str, Any], info: TensorInfo, rows: int, tail: memoryview
) -> tuple[memoryview, memoryview]:
    """Return the bytes of an input, and the binary data behind them."""
    what = f"input {info.name!a}"
    size = _parameters(tensor, what, {"binary_data_size"}).get("binary_data_size")
    wanted = info.nbytes(rows)
    if size is None:
        return _from_json(tensor.get("data"), info, rows), tail
    if type(size) is not int or size != wanted or "data" in tensor:
        both = " beside data" if "data" in tensor else ""
        _invalid(f"binary_data_size {shown(size)}{both} of {what}", f"{wanted} bytes, no data")
    if size > len(tail):
        _invalid(f"a body that ends in the data of {what}", f"{size} bytes")
    part = tail[:size]
    if info.datatype == "BOOL" and np.frombuffer(part, np.uint8).max(initial=0) > 1:
        _invalid(f"another byte than 0 and 1 in {what}", "0 for false and 1 for true")
    return part, tail[size:]


def _from_json(data: object, info: TensorInfo, rows: int) -> memoryview:
    """Convert numbers, flat or nested, to the bytes of a tensor."""
    shape = info.sized(rows)
    allowed = f"{prod(shape)} values of {info.datatype}, flat or nested as {list(shape)}"
    if not isinstance(data, list):
        _invalid(f"data {shown(data)} of input {info.name!a}", allowed)
    array = np.array(data, object)  # pointers alone: texts would become arrays of the longest
    if array.shape not in ((prod(shape),), shape):
        _invalid(f"data of shape {list(array.shape)} in input {info.name!a}", allowed)
    wrong = set(map(type, array.flat)) - _TYPES[info.dtype.kind]
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong))
        _invalid(f"data of type {names} in input {info.name!a}", allowed)
    try:
        with np.errstate(over="ignore"):
            cast = array.astype(info.dtype)
    except (OverflowError, ValueError) as error:
        _invalid(f"data of input {info.name!a}: {error}"[:200], allowed)
    if info.dtype.kind in "fV" and not np.isfinite(cast.astype(np.float64)).all():
        _invalid(f"a number beyond {info.datatype} in input {info.name!a}", allowed)
    return bytes_of(cast)


_TYPES: dict[str, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "V": {int, float},
}
"""Types of JSON's values by the kind of element type; V is that of bfloat16."""


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array, in row-major order."""
    found: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(found)
