"""The protocol's own forms, and what is refused of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flow_serve.info import TYPES, ModelInfo, TensorInfo
from flow_serve.protocol import LARGEST_JSON, read_request, write_response
from flow_serve.settings import Refused

X, N = TensorInfo("x", "FP32", (-1, 2)), TensorInfo("n", "INT8", (-1,))
Y, Z = TensorInfo("y", "FP32", (-1, 2)), TensorInfo("z", "INT64", (-1, 1))
MODEL = ModelInfo("m", "3", "p", (X, N), (Y, Z), 4, True)


def kinds(name: str) -> ModelInfo:
    """A model of one fixed input and output of an element type."""
    tensor = TensorInfo("t", name, (2, 2))
    return ModelInfo("k", "1", "p", (tensor,), (tensor,), 0, False)


def body(**changes: Any) -> dict[str, Any]:
    """A request for `MODEL` with changed parts of its first input."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]} | changes
    n = {"name": "n", "datatype": "INT8", "shape": [2], "data": [5, -6]}
    return {"inputs": [n, {k: v for k, v in x.items() if v is not None}]}


def refused(content: object, tail: bytes = b"", head: str | None = None) -> Refused:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(Refused) as caught:
        read_request(raw + tail, str(len(raw)) if head is None and tail else head, MODEL)
    assert caught.value.reason in ("invalid_request", "too_large")
    str(caught.value).encode("ascii")
    return caught.value


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4.0]]])
def test_json_is_read_in_the_order_of_the_model(data: Any) -> None:
    content = body(data=data) | {"id": "a"}
    request = read_request(json.dumps(content).encode(), None, MODEL)
    assert (request.id, request.rows) == ("a", 2)
    assert np.frombuffer(request.arrays[0], "f4").tolist() == [1, 2, 3, 4]
    assert np.frombuffer(request.arrays[1], "i1").tolist() == [5, -6]
    assert request.outputs == ((0, False), (1, False))


def test_binary_data_follow_in_the_order_of_the_request() -> None:
    content = body(data=None, parameters={"binary_data_size": 16})
    content["inputs"][0] = {
        "name": "n", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2},
    }  # fmt: skip
    content |= {"parameters": {"binary_data_output": True}}
    content |= {"outputs": [{"name": "z"}, {"name": "y", "parameters": {"binary_data": False}}]}
    x = np.arange(4, dtype="f4")
    text = json.dumps(content).encode()
    request = read_request(text + b"\x05\xfa" + x.tobytes(), str(len(text)), MODEL)
    assert [bytes(a) for a in request.arrays] == [x.tobytes(), b"\x05\xfa"]
    assert request.outputs == ((1, True), (0, False))
    outputs = [memoryview(x.tobytes()), memoryview(np.array([7, 8]).tobytes())]
    head, tail = write_response(MODEL, request, outputs, 2)
    z, y = json.loads(head)["outputs"]
    assert y == {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [0, 1, 2, 3]}
    assert z == {
        "name": "z", "datatype": "INT64", "shape": [2, 1], "parameters": {"binary_data_size": 16},
    }  # fmt: skip
    assert [bytes(t) for t in tail] == [outputs[1].tobytes()]


@pytest.mark.parametrize("name", TYPES)
def test_each_element_type_passes_in_both_forms(name: str) -> None:
    model = kinds(name)
    dtype = model.inputs[0].dtype
    values = [True, False, False, True] if name == "BOOL" else [0, 1, 100, 127]
    array = np.array(values).astype(dtype)
    tensor = {"name": "t", "datatype": name, "shape": [2, 2]}
    plain = json.dumps({"inputs": [tensor | {"data": values}]}).encode()
    size = {"parameters": {"binary_data_size": array.nbytes}}
    text = json.dumps({"inputs": [tensor | size]}).encode()
    for raw, head in ((plain, None), (text + array.tobytes(), str(len(text)))):
        request = read_request(raw, head, model)
        assert bytes(request.arrays[0]) == array.tobytes()
    response, _ = write_response(model, request, [memoryview(array.tobytes())], 1)
    assert json.loads(response)["outputs"][0]["data"] == values


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "y"}, "'y' in inputs"),
        ({"name": 3}, "3 in inputs"),
        ({"name": "n"}, "'n' in inputs"),
        ({"datatype": "FP64"}, "'FP64'"),
        ({"datatype": "BYTES"}, "'BYTES'"),
        ({"datatype": None}, "None"),
        ({"shape": [2]}, "[-1, 2]"),
        ({"shape": [2, 3]}, "[-1, 2]"),
        ({"shape": [-1, 2]}, "a list of sizes"),
        ({"shape": [2.0, 2]}, "a list of sizes"),
        ({"shape": [True, 2]}, "a list of sizes"),
        ({"shape": [1 << 60, 2]}, "a list of sizes"),
        ({"shape": [5, 2]}, "2, 5 rows"),
        ({"shape": [2] * 9999}, "[-1, 2]"),
        ({"shape": None}, "a list of sizes"),
        ({"data": [1, 2, 3]}, "shape [3]"),
        ({"data": [[1, 2, 3, 4]]}, "shape [1, 4]"),
        ({"data": [[1, 2], [3]]}, "shape [2]"),
        ({"data": [1, 2, 3, "4"]}, "type str"),
        ({"data": [1, 2, 3, None]}, "type NoneType"),
        ({"data": [1, 2, 3, True]}, "type bool"),
        ({"data": [1, 2, 3, {}]}, "type dict"),
        ({"data": [1, 2, 3, 1e39]}, "beyond FP32"),
        ({"data": [1, 2, 3, 10**400]}, "data of input 'x'"),
        ({"data": "1234"}, "'1234'"),
        ({"data": {}}, "{}"),
        ({"parameters": {"binary_data_size": 16}}, "beside data"),
        ({"data": None, "parameters": {"binary_data_size": 16}}, "ends in the data"),
        ({"data": None, "parameters": {"binary_data_size": 15}}, "16 bytes"),
        ({"data": None, "parameters": {"binary_data_size": -16}}, "16 bytes"),
        ({"data": None, "parameters": {"binary_data_size": 16.0}}, "16 bytes"),
        ({"parameters": {"shared_memory_region": "a"}}, "shared_memory_region"),
        ({"parameters": []}, "an object"),
        ({"content": 1}, "'content'"),
    ],
)
def test_wrong_inputs_are_refused(changes: dict[str, Any], text: str) -> None:
    assert text in str(refused(body(**changes)))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "JSONDecodeError"),
        (b"{", "JSONDecodeError"),
        (b"\xff", "UnicodeDecodeError"),
        (b"[" * 10**5, "RecursionError"),
        (b"1" * 5000, "ValueError"),
        (b"[]", "a JSON object"),
        (b'{"inputs": NaN}', "NaN is not JSON"),
        ({"inputs": {}}, "a list of objects"),
        ({"inputs": [1]}, "None in inputs"),
        ({"inputs": []}, "no input 'x'"),
        (body() | {"id": 3}, "id 3"),
        (body() | {"id": "a" * 2000}, "at most 1024"),
        (body() | {"model": "m"}, "'model'"),
        (body() | {"outputs": [{"name": "x"}]}, "'x' in outputs"),
        (body() | {"outputs": [{"name": "y"}, {"name": "y"}]}, "each once"),
        (body() | {"outputs": [{"name": "y", "parameters": {"classification": 2}}]}, "classifi"),
        (body() | {"parameters": {"binary_data_output": 1}}, "true or false"),
        (b" " * (LARGEST_JSON + 1), "bytes of JSON"),
    ],
)
def test_wrong_requests_are_refused(content: Any, text: str) -> None:
    assert text in str(refused(content))


@pytest.mark.parametrize("head", ["", "-1", "1e3", "9999999", "٣", "0x10", "9" * 30])
def test_a_wrong_length_of_the_json_is_refused(head: str) -> None:
    assert "Inference-Header" in str(refused(body(), head=head))


def test_bytes_that_no_tensor_has_are_refused() -> None:
    assert "1 bytes behind the tensors" in str(refused(body(), tail=b"\0"))


@pytest.mark.parametrize("value", [-129, 128, 1 << 63, 1.0, 1e400, True])
def test_numbers_that_an_integer_type_lacks_are_refused(value: Any) -> None:
    content = body()
    content["inputs"][0]["data"] = [1, value]
    refused(content)


def test_other_booleans_than_0_and_1_are_refused() -> None:
    tensor = {"name": "t", "datatype": "BOOL", "shape": [2, 2]}
    size = {"parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [tensor | size]}).encode()
    with pytest.raises(Refused, match="another byte than 0 and 1"):
        read_request(text + b"\0\1\2\1", str(len(text)), kinds("BOOL"))


@pytest.mark.parametrize("name", ["FP16", "BF16", "FP32", "FP64"])
def test_numbers_that_json_lacks_need_the_binary_form(name: str) -> None:
    model = kinds(name)
    array = np.array([0, np.nan, np.inf, 1]).astype(model.inputs[0].dtype)
    tensor = {"name": "t", "datatype": name, "shape": [2, 2], "data": [0, 0, 0, 0]}
    for binary in (False, True):
        content = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
        request = read_request(json.dumps(content).encode(), None, model)
        if binary:
            write_response(model, request, [memoryview(array.tobytes())], 1)
        else:
            with pytest.raises(Refused, match="request binary_data") as caught:
                write_response(model, request, [memoryview(array.tobytes())], 1)
            assert caught.value.reason == "failed"
