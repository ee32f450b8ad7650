"""Missing kernels of a job are reported at once."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import plain_device
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import KernelNotFoundError
from flow_core.passes.base import PassContext
from flow_core.plugins.specs import KernelQuery


def line_of(job: Any, text: str) -> str:
    """Return the place of a line of a job, as errors quote it."""
    lines, first = inspect.getsourcelines(inspect.unwrap(job))
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(__file__).name}:{first + number}"


def refused(found: Any, define: Any) -> KernelNotFoundError:
    with plain_device.session(found):
        job = define()
        with pytest.raises(KernelNotFoundError) as caught:
            job.compile()
    return caught.value


def several() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        with flow.scope.placement("plain", "0:0"):
            a = flow.math.relu(x)
            b = flow.math.tanh(a)
            c = flow.math.tanh(b)
            return flow.math.reduce_sum(c)

    return job


def test_one_error_lists_all_ops_with_their_lines() -> None:
    missing = (*plain_device.COMBINED, "tanh", "reduce_sum")
    error = refused(plain_device.registry(missing), several)
    assert [(m.op, len(m.users)) for m in error.missing] == [("tanh", 2), ("reduce_sum", 1)]
    text = str(error)
    assert "2 kernels missing" in text
    assert "tanh float32[2,3] -> float32[2,3] on plain" in text
    assert "no kernel is registered for this op" in text
    for call in ("b = ", "c = ", "reduce_sum("):
        assert line_of(several, call) in text
    assert "tanh: cpu" in text
    assert error.at is not None
    assert str(error.at).endswith(line_of(several, "b = "))


def test_near_misses_are_explained() -> None:
    def accepts(query: KernelQuery) -> bool:
        return query.op != "relu"

    error = refused(plain_device.registry(accepts=accepts), several)
    assert [m.op for m in error.missing] == ["relu"]
    assert "'plain.numpy.relu' (plugin 'plain_device_plugin'" in str(error)
    assert "its predicate rejects these types or attributes" in str(error)


def test_devices_with_the_same_op_are_one_entry() -> None:
    def define() -> Any:
        @flow.global_function()
        def split(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            with flow.scope.placement("plain", "0:0-1"):
                return flow.math.tanh(x)

        return split

    error = refused(plain_device.registry(("tanh",)), define)
    assert [(m.op, [u.name for u in m.users]) for m in error.missing] == [("tanh", ["tanh"])]


def test_members_of_a_fused_op_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassContext, "has_kernel", lambda *_: True)
    text = str(refused(plain_device.registry(), several))
    assert "fused float32[2,3] -> float32[2,3] on plain" in text
    for member, call in (
        ("relu 'relu'", "a = "),
        ("tanh 'tanh'", "b = "),
        ("tanh 'tanh_1'", "c ="),
    ):
        place = line_of(several, call)
        assert any(member in row and place in row for row in text.splitlines())


def test_missing_kernels_of_members_are_listed() -> None:
    """A kernel of fused ops that has no kernel for a member names the member's op."""
    found = plain_device.registry((*plain_device.COMBINED[1:], "tanh"))
    error = refused(found, lambda: plain_device.perceptron("plain"))
    assert {m.op for m in error.missing} == {"tanh"}
