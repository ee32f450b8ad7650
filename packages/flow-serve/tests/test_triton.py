"""Triton's HTTP client, as in ``nox -s "peer(triton)"``, which installs it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp

http: Any = pytest.importorskip("tritonclient.http")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
IDS = np.arange(4, dtype=np.int64).reshape(4, 1)
TOKEN = "a token of this test"


@flow.global_function()
def both(
    x: tp.Numpy.Placeholder((4, 3)), ids: tp.Numpy.Placeholder((4, 1), flow.int64)
) -> tuple[tp.Numpy, tp.Numpy]:
    return flow.math.tanh(x, name="tanh"), flow.cast(ids + ids, flow.int32, name="twice")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        builder = flow.saved_model.ModelBuilder(str(folder / "both")).Version(version)
        builder.AddFunction(both)
        builder.Save()
    token = folder.parent / "token"
    token.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-m", "flow_core.cli", "serve", str(folder), "--port", "0"]
    options = ["--versions", "2", "--token-file", str(token)]
    with processes.Program([*command, *options], stderr=processes.STDOUT) as server:
        lines = iter(server.stdout.readline, "")
        yield next(re.findall(r"http://(.*)$", x) for x in lines if "serving" in x)[0]
        server.terminate()
        assert server.status() == 0


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with http.InferenceServerClient(address, concurrency=4) as found:
        yield found


HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def inputs(binary: bool, rows: int = 4) -> list[Any]:
    x = http.InferInput("x", [rows, 3], "FP32")
    ids = http.InferInput("ids", [rows, 1], "INT64")
    x.set_data_from_numpy(X[:rows], binary_data=binary)
    ids.set_data_from_numpy(IDS[:rows], binary_data=not binary)
    return [x, ids]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("both", "1", headers=HEADERS)
    assert client.get_server_metadata(headers=HEADERS)["name"] == "flow-serve"
    found = client.get_model_metadata("both", headers=HEADERS)
    assert found["versions"] == ["2", "1"]
    assert found["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    index = client.get_model_repository_index(headers=HEADERS)
    assert [(m["name"], m["version"], m["state"]) for m in index] == [
        ("both", "2", "READY"), ("both", "1", "READY"),
    ]  # fmt: skip


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_infer(client: Any, binary: bool, asked: bool | None) -> None:
    outputs = None
    if asked is not None:
        names = ("twice", "tanh")
        outputs = [http.InferRequestedOutput(name, binary_data=asked) for name in names]
    options = {"outputs": outputs, "request_id": "7", "headers": HEADERS}
    found = client.infer("both", inputs(binary), model_version="1", **options)
    assert found.get_response()["id"] == "7"
    assert found.get_response()["model_version"] == "1"
    np.testing.assert_allclose(found.as_numpy("tanh"), np.tanh(X), rtol=1e-5)
    np.testing.assert_array_equal(found.as_numpy("twice"), 2 * IDS)


def test_requests_at_the_same_time(client: Any) -> None:
    rows = (1, 2, 3, 4) * 8
    sent = [client.async_infer("both", inputs(True, n), headers=HEADERS) for n in rows]
    for n, each in zip(rows, sent, strict=True):
        np.testing.assert_allclose(each.get_result().as_numpy("tanh"), np.tanh(X[:n]), rtol=1e-5)


def test_errors_are_the_clients_exceptions(client: Any) -> None:
    def text(**options: Any) -> str:
        with pytest.raises(http.InferenceServerException) as caught:
            client.infer(**{"model_name": "both", "inputs": inputs(True), **options})
        return str(caught.value)

    assert "[401]" in text()
    assert "found: model 'none'" in text(model_name="none", headers=HEADERS)
    assert "no input 'ids'" in text(inputs=inputs(True)[:1], headers=HEADERS)
    assert "compressed" in text(request_compression_algorithm="gzip", headers=HEADERS)
