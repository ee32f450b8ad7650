"""The command, as a process that is loaded with good and bad requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
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
        self.port, self.rng, self.expected = port, random.Random(seed), expected
        self.answers: Counter[str] = Counter()
        self.sent = 0
        self.wrong: list[Any] = []

    def load(self, stop: threading.Event) -> None:
        """Send requests until the event is set, and at least `REQUESTS`."""
        least = self.sent + REQUESTS
        while self.sent < least or not stop.is_set():
            self.send()

    def send(self) -> None:
        self.sent += 1
        body, headers, wanted = request_of(self.rng)
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            connection.request("POST", "/v2/models/scores/infer", body, headers)
            response = connection.getresponse()
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


class Server(processes.Program):
    """The command, whose limits do not depend on the load of this machine."""

    def __init__(self, folder: Path) -> None:
        limits = ("--timeout", "600", "--client-timeout", "600", "--run-timeout", "600")
        command = [*COMMAND, str(folder), "--port", "0", *limits]
        super().__init__(command, stderr=processes.STDOUT)
        self.lines: list[str] = []

    def until(self, mark: str) -> str:
        """Read output up to a line with a mark, and return the line."""
        for line in iter(self.stdout.readline, ""):
            self.lines.append(line)
            if mark in line:
                return line
        raise AssertionError("".join(self.lines))


ACTIONS: tuple[tuple[Callable[[Server], None], str], ...] = (
    (lambda server: kill_worker(server.pid), "status -9"),
    (lambda server: server.send_signal(signal.SIGHUP), "reloaded"),
)
"""What happens to a loaded server, and what it then prints."""


def kill_worker(server: int) -> None:
    """Kill a worker: the newest one, because a reload may be ending others."""
    *_, worker = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    os.kill(int(worker), signal.SIGKILL)


@pytest.mark.parametrize(
    "minutes",
    [pytest.param(0, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.exhaustive)],
)
@pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")
def test_every_request_of_a_loaded_server_is_answered(tmp_path: Path, minutes: int) -> None:
    """While it runs, a worker is killed and the models are reloaded; then it is told to end."""
    builder = flow.saved_model.ModelBuilder(str(tmp_path / "scores")).Version(1)
    builder.AddFunction(scores)
    scores(np.zeros((4, 3), np.float32))
    builder.Save()
    weights = {k: v.numpy() for k, v in flow.get_all_variables().items()}

    def expected(x: Any) -> Any:
        logits = np.exp(x @ weights["line-weight"].T + weights["line-bias"])
        return logits / logits.sum(axis=1, keepdims=True)

    killed, until = 0, time.monotonic() + 60 * minutes
    with Server(tmp_path) as server, ThreadPoolExecutor(CLIENTS) as pool:
        port = int(server.until("serving").rpartition(":")[2])
        clients = [Client(port, seed, expected) for seed in range(CLIENTS)]
        while not killed or time.monotonic() < until:
            for action, mark in ACTIONS:
                stop = threading.Event()
                loads = [pool.submit(client.load, stop) for client in clients]
                try:
                    action(server)
                    server.until(mark)
                finally:
                    stop.set()
                for each in loads:
                    each.result()
            killed += 1
        server.send_signal(signal.SIGTERM)
        assert server.status() == 0
        output = "".join((*server.lines, server.stdout.read()))
    wrong = [each for client in clients for each in client.wrong]
    assert not wrong, wrong[:5]
    answers = sum((client.answers for client in clients), Counter())
    assert sum(answers.values()) == sum(client.sent for client in clients)
    assert answers.keys() <= {"ok", "invalid_request", "worker_lost"}
    assert answers["ok"] > answers["invalid_request"] > 0
    assert answers["worker_lost"] <= killed * CLIENTS  # those of a batch per killed worker
    assert "Traceback" not in output
