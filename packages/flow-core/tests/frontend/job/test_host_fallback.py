"""Ops without a kernel run on the CPU, if a setting allows it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import plain_device
import pytest
from opaque_devices import opaque_registry

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import (
    ConfigError,
    HostFallbackWarning,
    KernelNotFoundError,
    VariableError,
)
from flow_core.comm.exchange import exchanges, links_of
from flow_core.frontend.session import session as sessions
from flow_core.observe.oracle import verify
from flow_core.observe.text import plan_report
from flow_core.testing import queued_device

WIDE = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
Y = np.arange(8, dtype=np.int32) % 5
ALL = plain_device.COMBINED


def config(policy: str | None) -> Any:
    found = flow.function_config()
    if policy is not None:
        found.host_fallback(policy)
    return found


@contextmanager
def lacking(*ops: str) -> Iterator[sessions.Session]:
    with plain_device.session(plain_device.registry((*ALL, *ops), shares_memory=False)) as found:
        yield found


def trained(device: str, ids: str, ops: Collection[str], steps: int = 4) -> list[float]:
    with lacking(*ops):
        job = plain_device.perceptron(device, ids, config("silent"))
        return [job(WIDE, Y).item() for _ in range(steps)]


def devices_of(job: Any, op: str) -> set[str]:
    return {task.device.type for task in job.compile().plan.tasks if task.type == op}


UPDATE = ("momentum_update",)
STEPS = ("learning_rate_schedule", "advance_step")


@pytest.mark.representative(
    r"\[(ops0-0:0|ops3-0:0-1)\]",
    "an op of the forward pass on one device; updates and their step numbers on two",
)
@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
@pytest.mark.parametrize(
    "ops", [("tanh",), ("tanh", "tanh_grad", "relu_grad", "matmul"), UPDATE, (*UPDATE, *STEPS)]
)
def test_training_equals_the_cpu(ids: str, ops: tuple[str, ...]) -> None:
    wanted = trained("cpu", "0:0", ())
    np.testing.assert_allclose(trained("plain", ids, ops), wanted, rtol=1e-5)


def test_ops_move_with_the_variables_that_they_overwrite() -> None:
    with lacking(*UPDATE):
        job = plain_device.perceptron("plain", "0:0", config("silent"))
        plan = job.compile().plan
        assert devices_of(job, "momentum_update") == {"cpu"}
        assert devices_of(job, "matmul") == {"plain"}
        held = {b.name: b.memory.type for b in plan.buffers if b.kind == "variable"}
        assert {held[name] for name in held if "weight" in name or "bias" in name} == {"cpu"}


def test_members_of_fused_groups_move_alone() -> None:
    others = [op for op in ALL if op != "fused"]
    found = plain_device.registry((*others, "tanh", "tanh_grad"), shares_memory=False)
    with plain_device.session(found):
        job = plain_device.perceptron("plain", "0:0", config("silent"))
        losses = [job(WIDE, Y).item() for _ in range(4)]
        assert devices_of(job, "tanh") == {"cpu"}
        assert devices_of(job, "fused") == {"plain"}
    np.testing.assert_allclose(losses, trained("cpu", "0:0", ()), rtol=1e-5)


def test_transfers_are_counted_and_explained() -> None:
    with lacking("tanh"):
        job = plain_device.perceptron("plain", "0:0", config("silent"))
        for _ in range(3):
            job(WIDE, Y)
        plan, size = job.plan(), 8 * 16 * 4
        links = {link: 3 * n for link, n in links_of(exchanges(plan)).items()}
        assert job.executable().sent() == links
        entries = {entry.value: entry for entry in plan.ledger if "has no kernel" in entry.why}
        assert {value: entry.links for value, entry in entries.items()} == {
            "scalar_mul:0": {"plain:0:0->cpu:0:0": size},
            "tanh:0": {"cpu:0:0->plain:0:0": size},
        }
        assert all("plain has no kernel for tanh" in entry.why for entry in entries.values())
        assert "plain has no kernel for tanh" in plan_report(job)


def test_off_is_the_default_and_names_the_setting() -> None:
    for policy in (None, "off"):
        with lacking("tanh"), pytest.raises(KernelNotFoundError, match="FLOW_HOST_FALLBACK=warn"):
            plain_device.perceptron("plain", "0:0", config(policy)).compile()


def test_a_warning_names_the_ops_once() -> None:
    with lacking("tanh", "relu"):
        job = plain_device.perceptron("plain", "0:0", config("warn"))
        with pytest.warns(HostFallbackWarning) as caught:
            job(WIDE, Y)
        (warning,) = caught
        text = str(warning.message)
        assert "job 'job' runs 2 ops without a kernel on the CPU" in text
        assert "tanh 'tanh' of device type 'plain' at " in text
        assert "plain_device.py:" in text
        assert warning.filename == plain_device.__file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            job(WIDE, Y)


def test_the_session_has_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_HOST_FALLBACK", "silent")
    with lacking("tanh") as session:
        assert session.settings.host_fallback == "silent"
        assert np.isfinite(plain_device.perceptron("plain")(WIDE, Y))
        with pytest.raises(KernelNotFoundError):
            plain_device.perceptron("plain", "0:0", config("off"), name="other").compile()
    monkeypatch.delenv("FLOW_HOST_FALLBACK")
    with lacking("tanh"):
        flow.config.host_fallback("silent")
        assert np.isfinite(plain_device.perceptron("plain")(WIDE, Y))
        with pytest.raises(ConfigError, match="'off' or 'warn' or 'silent'"):
            flow.config.host_fallback(True)
    with pytest.raises(ConfigError, match="off or warn or silent"):
        Settings.from_env({"FLOW_HOST_FALLBACK": "yes"})
    with pytest.raises(ConfigError, match="'off' or 'warn' or 'silent'"):
        config("yes")


def test_kernels_that_no_device_has_stay_an_error() -> None:
    registry = plain_device.registry((*ALL, "tanh", "exp"), shares_memory=False)
    kernels = {key: v for key, v in registry.all_kernels.items() if key != ("tanh", "cpu")}
    with plain_device.session(replace(registry, all_kernels=kernels)):
        job = plain_device.perceptron("plain", "0:0", config("silent"))
        with pytest.raises(KernelNotFoundError) as caught:
            job.compile()
    assert [m.op for m in caught.value.missing] == ["tanh"]
    assert "FLOW_HOST_FALLBACK" not in str(caught.value)


def predictor(policy: str) -> Any:
    @flow.global_function("predict", config(policy))
    def predict(x: tp.Numpy.Placeholder((8, 40))) -> tp.Numpy:
        with flow.scope.placement("plain", "0:0"):
            draw = flow.random_normal_initializer(stddev=0.3)
            return flow.layers.dense(x, 16, kernel_initializer=draw, name="a")

    return predict


def test_later_jobs_read_the_variables_where_they_are() -> None:
    with lacking(*UPDATE) as session:
        job, predict = (
            plain_device.perceptron("plain", "0:0", config("silent")),
            predictor("silent"),
        )
        job(WIDE, Y)
        weights, biases = (session.value(f"a-{name}") for name in ("weight", "bias"))
        np.testing.assert_allclose(predict(WIDE), WIDE @ weights.T + biases, rtol=1e-4, atol=1e-5)
        assert devices_of(predict, "matmul") == {"plain"}


def test_variables_that_an_earlier_job_holds_are_refused() -> None:
    with lacking(*UPDATE):
        job, predict = (
            plain_device.perceptron("plain", "0:0", config("silent")),
            predictor("silent"),
        )
        predict(WIDE)
        with pytest.raises(VariableError) as caught:
            job(WIDE, Y)
        text = str(caught.value)
        assert "holding variable 'a-weight' of job 'job' on the CPU" in text
        assert "momentum_update" in text
        assert "has no kernel on plain" in text
        assert "an earlier job, which holds it on plain[0:0]" in text
        assert "compile job 'job' before the others" in text


def test_micro_batches() -> None:
    def losses(device: str) -> list[float]:
        chosen = config("silent")
        chosen.train.num_gradient_accumulation_steps(2)
        with lacking("tanh", "tanh_grad"):
            job = plain_device.perceptron(device, "0:0", chosen)
            return [job(WIDE, Y).sum().item() for _ in range(3)]

    np.testing.assert_allclose(losses("plain"), losses("cpu"), rtol=1e-5)


@pytest.mark.parametrize("device", ["opaque", "queued"])
def test_devices_whose_memory_the_host_can_only_copy(device: str) -> None:
    """The second one is asynchronous."""
    lacks = ("tanh", "relu_grad", "momentum_update", "fused", "literal", "matmul_onto")
    found = opaque_registry(queued_device)
    (kernel,) = found.kernels("tanh", device)
    some = replace(kernel, accepts=lambda query: query.op not in lacks)
    kernels = {key: rows for key, rows in found.all_kernels.items() if key[1] != device}
    kernels["*", device] = (some,)
    with plain_device.session(replace(found, all_kernels=kernels)):
        job = plain_device.perceptron(device, "0:0-1", config("silent"))
        losses = [job(WIDE, Y).item() for _ in range(4)]
        assert devices_of(job, "momentum_update") == {"cpu"}
        assert devices_of(job, "bias_add") == {device}
    np.testing.assert_allclose(losses, trained("cpu", "0:0", ()), rtol=1e-5)


@pytest.mark.slow
def test_the_oracle_verifies_plans_with_ops_on_the_cpu() -> None:
    with lacking("tanh", *UPDATE):
        job = plain_device.perceptron("plain", "0:0-1", config("silent"))
        assert verify(job, steps=2, seed=0).ok
