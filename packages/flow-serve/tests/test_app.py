"""Paths, batches, limits, access and lost workers, with a worker process of numpy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from flow_serve.settings import MIB, STATUS, Limits, Refused

WAITING = 'flow_serve_waiting_requests{model="double",version="1"}'
BUSY = "flow_serve_busy_workers"
ROWS = 'flow_serve_batch_rows_sum{model="double",version="1"}'
BATCHES = 'flow_serve_batch_rows_count{model="double",version="1"}'


def test_the_server_describes_itself_and_its_models(serving: Any) -> None:
    async def check(served: Any) -> None:
        tensor = {"datatype": "FP32", "shape": [-1, 2]}
        model = {
            "name": "double", "versions": ["1"], "platform": "p",
            "inputs": [tensor | {"name": "x"}], "outputs": [tensor | {"name": "y"}],
        }  # fmt: skip
        index = [{"name": "double", "version": "1", "state": "READY", "reason": ""}]
        assert (await served.call("/v2/health/live")).json == {"live": True}
        assert (await served.call("/v2/health/ready")).json == {"ready": True}
        assert (await served.call("/v2")).json["extensions"]
        for path in ("/v2/models/double", "/v2/models/double/versions/1"):
            assert (await served.call(path)).json == model
            assert (await served.call(f"{path}/ready")).status == 200
        assert (await served.call("/v2/repository/index", b"{}")).json == index
        text = await served.call("/metrics")
        assert b"flow_serve_workers 1.0\n" in text.body
        assert b"text/plain" in text.headers[b"content-type"]

    serving(check)


@pytest.mark.parametrize(
    ("path", "method", "reason"),
    [
        ("/", "GET", "unknown_path"),
        ("/v1/models", "GET", "unknown_path"),
        ("/v2/models/double/config", "GET", "unknown_path"),
        ("/v2/models/../double", "GET", "unknown_model"),
        ("/v2/models/..", "GET", "unknown_model"),
        ("/v2/models/%00", "GET", "unknown_model"),
        ("/v2/models//etc/passwd/infer", "POST", "unknown_path"),
        ("/v2/models/double/versions/2", "GET", "unknown_model"),
        ("/v2/models/double/versions/01", "GET", "unknown_model"),
        ("/v2/models/double/infer", "GET", "wrong_method"),
        ("/v2/models/double", "DELETE", "wrong_method"),
        ("/v2/health/live", "POST", "wrong_method"),
    ],
)
def test_wrong_paths_are_answered_by_a_reason(
    serving: Any, path: str, method: str, reason: str
) -> None:
    async def check(served: Any) -> None:
        found = await served.call(path, b"", method)
        assert (found.status, found.json["reason"]) == (STATUS[reason], reason)
        assert set(found.json) == {"error", "reason"}
        assert found.headers[b"content-type"] == b"application/json"

    serving(check)


def test_requests_that_wait_form_batches_of_their_rows(serving: Any) -> None:
    async def check(served: Any) -> None:
        first = asyncio.create_task(served.double(77))
        await served.until(BUSY, 1)
        calls = [
            asyncio.create_task(served.double(*range(100, 100 + n))) for n in (1, 2, 3, 4, 8, 1)
        ]
        await served.until(WAITING, len(calls))
        served.gate.touch()
        for n, call in zip((1, 2, 3, 4, 8, 1), calls, strict=True):
            (output,) = (await call).json["outputs"]
            assert output["data"] == [x for i in range(n) for x in (200 + 2 * i, 2)]
        assert (await first).status == 200
        # 1, then 1 + 2 + 3 with padding, 4, 8, 1
        assert (served.metric(ROWS), served.metric(BATCHES)) == (20, 5)

    serving(check)


def test_an_idle_worker_waits_for_a_batch(serving: Any) -> None:
    async def check(served: Any) -> None:
        found = await asyncio.gather(*(served.double(i) for i in range(4)))
        assert [x.json["outputs"][0]["data"][0] for x in found] == [0, 2, 4, 6]
        assert served.metric(BATCHES) == 1

    serving(check, rows=4, wait=3600.0)


def test_a_wait_is_bounded(serving: Any) -> None:
    async def check(served: Any) -> None:
        assert (await served.double(1)).status == 200

    serving(check, wait=0.01)


def test_a_bad_request_of_a_batch_fails_alone(serving: Any) -> None:
    async def check(served: Any) -> None:
        found = await asyncio.gather(*(served.double(i) for i in (1, 13, 2)))
        assert [x.status for x in found] == [200, 422, 200]
        assert found[1].json["reason"] == "failed"
        assert "13 is not a number of this model" in found[1].json["error"]
        assert "Traceback" not in found[1].json["error"]

    serving(check, rows=3, wait=3600.0)


def test_a_killed_worker_restarts_and_nothing_but_its_own_requests_fails(serving: Any) -> None:
    async def check(served: Any) -> None:
        own = asyncio.create_task(served.double(66))
        await served.until("flow_serve_lost_workers_total", 1)
        others = [asyncio.create_task(served.double(i)) for i in range(5)]
        assert (await own).json["reason"] == "worker_lost"
        assert [(await x).status for x in others] == [200] * 5
        assert served.metric("flow_serve_workers") == 1

    serving(check, rows=1)


def test_a_worker_that_is_killed_while_it_is_idle_loses_no_request(serving: Any) -> None:
    async def check(served: Any) -> None:
        (worker,) = served.app.pool._ready
        os.kill(worker.process.pid, signal.SIGKILL)
        await served.until("flow_serve_workers", 0)
        assert (await served.call("/v2/health/ready")).status == 503
        assert (await served.double(1)).status == 200

    serving(check)


def test_a_batch_that_takes_too_long_ends_its_worker(serving: Any) -> None:
    async def check(served: Any) -> None:
        assert (await served.double(77)).json["reason"] == "worker_lost"
        while (await served.double(1)).status != 200:  # a batch may be slow on a loaded machine
            pass

    serving(check, limits=Limits(run_seconds=0.3))


RESULTS = 'flow_serve_requests_total{model="double",result="%s",version="1"}'


def test_a_full_queue_refuses(serving: Any) -> None:
    async def check(served: Any) -> None:
        held = asyncio.create_task(served.double(77))
        await served.until(BUSY, 1)
        waiting = asyncio.create_task(served.double(1))
        await served.until(WAITING, 1)
        full = await served.double(2)
        assert (full.status, full.json["reason"]) == (503, "queue_full")
        assert full.headers[b"retry-after"]
        served.gate.touch()
        assert [(await x).status for x in (held, waiting)] == [200, 200]
        assert served.metric(RESULTS % "queue_full") == 1

    serving(check, limits=Limits(queue=1))


def test_a_late_request_leaves_the_queue(serving: Any) -> None:
    async def check(served: Any) -> None:
        found = await asyncio.gather(*(served.double(i) for i in (77, 1, 2)))
        assert [(x.status, x.json["reason"]) for x in found] == [(504, "timeout")] * 3
        assert served.metric(WAITING) == 0
        assert served.metric(RESULTS % "timeout") == 3

    serving(check, rows=1, limits=Limits(seconds=0.2))


def test_a_pool_that_is_closed_answers_what_waits(serving: Any) -> None:
    async def check(served: Any) -> None:
        calls = [asyncio.create_task(served.double(77)) for _ in range(3)]
        await served.until(WAITING, 2)
        closing = asyncio.create_task(served.app.pool.close())
        served.gate.touch()
        await closing
        assert [(await call).status for call in calls] == [200] * 3

    serving(check, rows=1)


def test_the_size_of_a_body_is_checked_before_it_is_read(serving: Any) -> None:
    async def check(served: Any) -> None:
        path = "/v2/models/double/infer"
        for length, parts in ((2 * MIB, []), (None, [b" " * (MIB // 2)] * 3)):
            headers = {} if length is None else {"content_length": length}
            found = await served.call(path, parts, **headers)
            assert (found.status, found.json["reason"]) == (413, "too_large")
            assert found.headers[b"connection"] == b"close"
        found = await served.call(path, b"{}", content_encoding="gzip")
        assert found.json["reason"] == "unsupported"
        slow = asyncio.create_task(served.call(path, [b"{"], content_length=MIB))
        while not served.app._bodies:
            await asyncio.sleep(0)
        found = await served.call(path, b"{}", content_length=MIB)
        assert found.json["reason"] == "overloaded"
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert served.app._bodies == 0

    serving(check, limits=Limits(body=MIB, bodies=MIB, client_seconds=0.1))


def test_a_token_is_required_where_it_is_set(serving: Any) -> None:
    async def check(served: Any) -> None:
        assert (await served.call("/v2/health/live")).status == 200
        for given in ({}, {"authorization": "Bearer x"}, {"authorization": "secret"}):
            found = await served.double(1, **given)
            assert (found.status, found.json["reason"]) == (401, "invalid_token")
        assert (await served.double(1, authorization="Bearer secret")).status == 200

    serving(check, token="secret")


def test_without_a_token_only_names_of_this_machine_are_answered(serving: Any) -> None:
    async def check(served: Any) -> None:
        for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
            assert (await served.double(1, host=host)).status == 200
        for host in ("example.org", "evil.localhost.example:80", "0.0.0.0", "", "[]", "::", "[::1"):
            assert (await served.double(1, host=host)).json["reason"] == "wrong_host"

    serving(check)


def test_errors_of_the_server_have_no_details(serving: Any, caplog: Any) -> None:
    async def check(served: Any) -> None:
        models, served.app.pool.models = served.app.pool.models, None
        found = await served.call("/v2/models/double")
        served.app.pool.models = models
        assert found.json == {"error": "an error of the server", "reason": "internal"}

    serving(check)
    assert "an error of the server" in caplog.text


def test_every_reason_has_a_status() -> None:
    assert json.dumps(STATUS)
    assert all(Refused(reason, "").status == status for reason, status in STATUS.items())
