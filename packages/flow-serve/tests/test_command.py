"""The command, as a process that is loaded with good and bad requests."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from click.testing import CliRunner

import oneflow as flow
import oneflow.typing as tp
from flow_core.cli.app import cli

COMMAND = (sys.executable, "-m", "flow_core.cli", "serve")
CLIENTS, REQUESTS = 6, 60


@flow.global_function()
def scores(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    initializer = flow.random_normal_initializer()
    return flow.nn.softmax(flow.layers.dense(x, 2, kernel_initializer=initializer, name="line"))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["serve", *arguments])


def test_wrong_use_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short")
    for arguments, found in (
        ((str(tmp_path / "none"),), "does not exist"),
        ((str(tmp_path), "--port", "0"), "no model"),
        ((str(tmp_path), "--host", "0.0.0.0", "--port", "0"), "no token"),
        ((str(tmp_path), "--token-file", str(token)), "5 characters"),
        ((str(tmp_path), "--workers", "0"), "--workers"),
    ):
        done = run(*arguments)
        assert done.exit_code != 0
        assert found in done.output


def request_of(rng: random.Random) -> tuple[bytes, dict[str, str], Any]:
    """Return a body, headers, and the rows or the status of the answer."""
    rows = [[rng.random() for _ in range(3)] for _ in range(rng.randrange(1, 5))]
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [len(rows), 3]}
    kind = rng.randrange(6)
    if kind < 2:
        return json.dumps({"inputs": [tensor | {"data": rows}]}).encode(), {}, rows
    data = np.array(rows, np.float32).tobytes()
    tensor["parameters"] = {"binary_data_size": len(data)}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    wrong = rng.choice((text[:-3], b"{}", b"\xff", text.replace(b"FP32", b"FP64")))
    if kind < 4:
        return text + data, headers, rows
    return (wrong, {}, 400) if kind == 4 else (text + data[:-1], headers, 400)


class Client:
    """Sends requests one after the other; counts answers, and keeps what is wrong."""

    def __init__(self, port: int, seed: int, expected: Any) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.rng, self.expected = random.Random(seed), expected
        self.answers: Counter[str] = Counter()
        self.wrong: list[Any] = []

    def send(self) -> None:
        body, headers, wanted = request_of(self.rng)
        self.connection.request("POST", "/v2/models/scores/infer", body, headers)
        response = self.connection.getresponse()
        content = json.loads(response.read())
        if response.status != 200:
            self.answers[content["reason"]] += 1
            if response.status not in (wanted, 503) or "Traceback" in content["error"]:
                self.wrong.append((wanted, content))
            return
        self.answers["ok"] += 1
        found = np.array(content["outputs"][0]["data"]).reshape(-1, 2)
        if not np.allclose(found, self.expected(np.array(wanted, np.float32)), atol=1e-5):
            self.wrong.append((wanted, content))


@pytest.mark.parametrize(
    "minutes",
    [pytest.param(0, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.exhaustive)],
)
@pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")
def test_every_request_of_a_loaded_server_is_answered(tmp_path: Path, minutes: int) -> None:
    """While it runs, a worker is killed and the models are reloaded; then it is told to end."""
    until = time.monotonic() + 60 * minutes
    builder = flow.saved_model.ModelBuilder(str(tmp_path / "scores")).Version(1)
    builder.AddFunction(scores)
    scores(np.zeros((4, 3), np.float32))
    builder.Save()
    weights = {k: v.numpy() for k, v in flow.get_all_variables().items()}

    def expected(x: Any) -> Any:
        logits = np.exp(x @ weights["line-weight"].T + weights["line-bias"])
        return logits / logits.sum(axis=1, keepdims=True)

    with processes.Program([*COMMAND, str(tmp_path), "--port", "0"]) as server:
        lines = iter(server.stdout.readline, "")
        port = int(next(re.findall(r":(\d+)$", x) for x in lines if "serving" in x)[0])
        clients = [Client(port, seed, expected) for seed in range(CLIENTS)]

        def load(client: Client) -> None:
            for _ in range(REQUESTS):
                client.send()

        actions, rounds = (lambda: None, lambda: kill_worker(server.pid), lambda: hup(server)), 0
        with ThreadPoolExecutor(CLIENTS) as pool:
            while rounds % 3 or not rounds or time.monotonic() < until:
                loads = [pool.submit(load, client) for client in clients]
                actions[rounds % 3]()
                for each in loads:
                    each.result(processes.scaled(processes.LIMIT))
                rounds += 1
        ending = threading.Thread(target=server.send_signal, args=(signal.SIGTERM,))
        clients[0].send()
        ending.start()
        for client in clients:
            client.connection.close()
        assert server.status() == 0
        ending.join()
        errors = server.stderr.read()
    wrong = [each for client in clients for each in client.wrong]
    assert not wrong, wrong[:5]
    answers = sum((client.answers for client in clients), Counter())
    assert sum(answers.values()) == rounds * CLIENTS * REQUESTS + 1
    assert answers.keys() <= {"ok", "invalid_request", "worker_lost"}
    assert answers["ok"] > answers["invalid_request"] > 0
    assert answers["worker_lost"] <= rounds / 3 * CLIENTS  # those of a batch per killed worker
    assert "status -9" in errors
    assert "reloaded" in errors
    assert "Traceback" not in errors


def kill_worker(server: int) -> None:
    """Kill a worker: the newest one, because a reload may be ending others."""
    *_, worker = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    os.kill(int(worker), signal.SIGKILL)


def hup(server: Any) -> None:
    server.send_signal(signal.SIGHUP)
