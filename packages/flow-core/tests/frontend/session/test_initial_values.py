"""Initial values: where they are generated, and what that takes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.philox import op_seed
from flow_core.frontend.session import variable_storage
from flow_core.frontend.session.session import default_session
from flow_core.ir.initializers import generate

SHAPE = (1024, 4096)
ARRAY = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)


def make_job(initializer: Any) -> Any:
    @flow.global_function()
    def first_element() -> tp.Numpy:
        return flow.slice(flow.get_variable("w", SHAPE, initializer=initializer), (0, 0), (1, 1))

    return first_element


@pytest.mark.parametrize(
    ("initializer", "wanted"),
    [
        (flow.random_normal_initializer(1.0, 2.0), ("random_normal", 1.0, 2.0)),
        (flow.truncated_normal_initializer(0.0, 2.0), ("truncated_normal", 0.0, 2.0)),
        (flow.constant_initializer(3.0), ("constant", 3.0)),
        (ARRAY, None),
    ],
    ids=["random", "truncated", "constant", "array"],
)
def test_values_are_stored_without_a_second_array(initializer: Any, wanted: Any) -> None:
    job = make_job(initializer)
    job.compile()
    tracemalloc.start()
    first = job()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    values = ARRAY if wanted is None else generate(wanted, SHAPE, "float32", op_seed(0, "w"))
    assert peak < 1.5 * values.nbytes
    assert first.item() == values[0, 0]
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), values)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of which initial values are generated, in order."""
    shapes: list[Any] = []

    def counted(initializer: Any, shape: Any, *args: Any) -> Any:
        shapes.append(shape)
        return generate(initializer, shape, *args)

    monkeypatch.setattr(variable_storage, "generate", counted)
    return shapes


def make_sum(distribute: Any = None) -> Any:
    @flow.global_function()
    def add() -> tp.Numpy:
        normal = flow.random_normal_initializer(0.0, 1.0)
        a = flow.get_variable("a", (4, 2), initializer=normal, distribute=distribute)
        return a + flow.get_variable("b", (2,), initializer=normal)

    return add


LOADED = np.arange(8, dtype=np.float32).reshape(4, 2)
DRAWN = generate(("random_normal", 0.0, 1.0), (2,), "float32", op_seed(0, "b"))


def test_loaded_values_need_no_initial_values(generated: list[Any]) -> None:
    job = make_sum()
    flow.load_variables({"a": LOADED, "b": LOADED[0]})
    np.testing.assert_array_equal(job(), LOADED + LOADED[0])
    assert not generated


@pytest.mark.parametrize("read", ["job", "get_all_variables", "save"])
def test_variables_that_are_not_loaded_are_initialized(
    read: str, generated: list[Any], tmp_path: Path
) -> None:
    job = make_sum()
    flow.load_variables({"a": LOADED})
    assert not generated
    if read == "get_all_variables":
        np.testing.assert_array_equal(flow.get_all_variables()["b"].numpy(), DRAWN)
    if read == "save":
        flow.checkpoint.save(str(tmp_path / "saved"))
        saved = flow.checkpoint.get(str(tmp_path / "saved"))
        np.testing.assert_array_equal(saved["b"].numpy(), DRAWN)
    np.testing.assert_array_equal(job(), LOADED + DRAWN)
    assert generated == [(2,)]


def test_values_loaded_before_variables_are_split(generated: list[Any]) -> None:
    flow.config.cpu_device_num(2)
    job = make_sum(flow.distribute.split(0))
    flow.load_variables({"a": LOADED})
    np.testing.assert_array_equal(job(), LOADED + DRAWN)
    assert set(generated) == {(2,)}


def test_initialize_generates_values_once(generated: list[Any]) -> None:
    job = make_sum()
    default_session().initialize()
    assert sorted(generated) == [(2,), (4, 2)]
    flow.load_variables({"a": LOADED})
    np.testing.assert_array_equal(job(), LOADED + DRAWN)
