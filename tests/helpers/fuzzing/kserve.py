"""Bodies of inference requests: a JSON object, after its length, and the bytes of tensors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flow_core.base.errors import DataError
from flow_serve.info import TYPES, ModelInfo, TensorInfo
from flow_serve.protocol import read_request, write_response
from flow_serve.settings import Refused
from fuzzing.mutations import EXTREMES, mutate_bytes, mutate_json
from fuzzing.target import Target

_INPUTS = (
    TensorInfo("x", "FP32", (-1, 2, 3)),
    TensorInfo("n", "INT64", (-1,)),
    TensorInfo("b", "BOOL", (2,)),
    TensorInfo("h", "BF16", (-1, 0)),
)
_MODEL = ModelInfo("m", "1", "p", _INPUTS, _INPUTS[:2], 4, True)
_WORDS = (*TYPES, "BYTES", "binary_data_size", "binary_data", "data", "shape", "x", "n")


def _seed(rows: int, binary: tuple[bool, ...], length: bool) -> bytes:
    tensors, tail = [], b""
    for info, is_binary in zip(_INPUTS, binary, strict=True):
        array = np.ones(info.sized(rows), info.dtype)
        tensor = info.metadata | {"shape": list(array.shape)}
        if is_binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            tail += array.tobytes()
        else:
            values = array.astype(bool) if info.datatype == "BOOL" else array.astype(int)
            tensor["data"] = values.tolist()
        tensors.append(tensor)
    outputs = [{"name": "n", "parameters": {"binary_data": True}}, {"name": "x"}]
    content = {"id": "1", "inputs": tensors, "outputs": outputs, "parameters": {}}
    text = json.dumps(content).encode()
    return (b"%d" % len(text) if length else b"") + b"\n" + text + tail


def _seeds() -> list[bytes]:
    mixed = (True, False, True, False)
    kinds = (((False,) * 4, False), ((True,) * 4, True), (mixed, True))
    return [_seed(rows, *kind) for rows in (1, 4) for kind in kinds]


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Changed values with the right lengths, changed words, or changed bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    head, _, rest = data.partition(b"\n")
    size = int(head or len(rest))
    text, tail = rest[:size].decode(), rest[size:]
    if rng.random() < 0.7:
        text = mutate_json(text, rng)
    else:
        text = text.replace(rng.choice(_WORDS), rng.choice(_WORDS), rng.choice((1, -1)))
    if rng.random() < 0.1:
        tail = mutate_bytes(tail, rng)
    raw = text.encode(errors="surrogatepass")
    length = len(raw) if rng.random() < 0.9 else rng.choice((-1, *EXTREMES))
    return (b"%d" % length if head else b"") + b"\n" + raw + tail


def _open(folder: Path) -> Callable[[bytes, int], object]:
    outputs = {n: [memoryview(bytes(t.nbytes(n))) for t in _MODEL.outputs] for n in range(5)}

    def read(data: bytes, number: int) -> None:
        head, _, body = data.partition(b"\n")
        try:
            request = read_request(body, head.decode("latin-1") or None, _MODEL)
        except Refused as error:
            raise DataError("reading a request", found=str(error)) from None
        sizes = [info.nbytes(request.rows) for info in _MODEL.inputs]
        if list(map(len, request.arrays)) != sizes:
            raise AssertionError(f"arrays of other sizes than {sizes}")
        content, tail = write_response(_MODEL, request, outputs[request.rows], request.rows)
        if len(json.loads(content)["outputs"]) != len(request.outputs):
            raise AssertionError(f"{content!r} and {len(tail)} binary outputs")

    return read


TARGETS = (Target("kserve", _seeds, _open, _mutate),)
