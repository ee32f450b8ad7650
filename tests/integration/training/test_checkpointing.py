"""Activation checkpointing: less memory, the same bits."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from parallel_forms import BATCH, assert_close, assert_same, dense, emulated, make_job, trained

import oneflow as flow
import oneflow.typing as tp

checkpointing = flow.experimental.scope.config
AGAIN = "recomputed"


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def deep(on: bool, layers: int = 3, width: int = 32) -> Callable[[Any], Any]:
    """A deep network, each of whose layers is a segment."""

    def body(x: Any) -> Any:
        x = dense(x, width, "in")
        for i in range(layers):
            with checkpointing(checkpointing=on):
                h = flow.math.gelu(dense(x, 2 * width, f"wide{i}"))
                h = flow.nn.dropout(h, rate=0.2, name=f"drop{i}")
                x = x + flow.math.tanh(dense(h, width, f"narrow{i}"))
        return dense(x, 5, "out")

    return body


@pytest.mark.representative(r"\[0:0(-1)?\]", "the others differ in sizes")
@pytest.mark.parametrize("ids", ["0:0", "0:0-1", "0:0-2", "0:0-3"])
def test_gradients_are_the_same(ids: str) -> None:
    plain = trained(ids, deep(False), rule="momentum")
    again = trained(ids, deep(True), rule="momentum")
    if ids == "0:0":
        assert_same(again, plain)
    else:  # the compiler may lay out more ops in another way
        assert_close(again, plain)
        assert_same(trained(ids, deep(True), rule="momentum"), again)


@pytest.mark.slow
def test_it_works_with_micro_batches() -> None:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(2)
    plain = trained("0:0-1", deep(False), config=config)
    again = trained("0:0-1", deep(True), config=config)
    assert_same(again, plain)


@pytest.mark.slow
@pytest.mark.representative(r"\[0:0\]", "the others differ in sizes")
@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
def test_the_planned_arena_shrinks(ids: str) -> None:
    def arenas(on: bool) -> list[Any]:
        flow.clear_default_session()
        body = deep(on, layers=12, width=64)
        return list(make_job(ids, body, batch=4096).plan().arenas)

    for plain, again in zip(arenas(False), arenas(True), strict=True):
        assert again.lower_bound < 0.4 * plain.lower_bound
        assert again.nbytes < 0.4 * plain.nbytes


def test_a_segment_is_recomputed_where_its_gradient_arrives() -> None:
    tasks = [t.op.split("@")[0] for t in make_job("0:0", deep(True)).plan().tasks]
    for i in (1, 2):
        over = tasks.index(f"wide{i}-matmul/grad/matmul_1")
        assert (
            tasks.index(f"drop{i}/recomputed") < over < tasks.index(f"wide{i - 1}-matmul/{AGAIN}")
        )


def test_what_leaves_a_segment_is_kept() -> None:
    graph = make_job("0:0", deep(True)).compile().optimized_logical
    again = [name for name in graph.ops if name.endswith(AGAIN)]
    assert again
    assert not any(
        name.startswith("broadcast_add") for name in again
    )  # the sums go to the next segment


def test_moving_averages_move_once() -> None:
    def body(on: bool) -> Callable[[Any], Any]:
        def network(x: Any) -> Any:
            with checkpointing(checkpointing=on):
                x = flow.math.tanh(dense(x, 16, "h"))
                x = flow.layers.batch_normalization(x, axis=1, name="bn")
                x = flow.math.tanh(x)
            return dense(x, 5, "o")

        return network

    assert_same(trained("0:0", body(True)), trained("0:0", body(False)))


def test_nothing_happens_without_a_scope_or_in_an_inner_scope_that_says_no() -> None:
    def body(x: Any) -> Any:
        with checkpointing(checkpointing=True), checkpointing(checkpointing=False):
            return deep(False)(x)

    graph = make_job("0:0", body, batch=BATCH).compile().optimized_logical
    assert not any(name.endswith(AGAIN) for name in graph.ops)


def test_a_job_that_does_not_train_recomputes_nothing() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 12))) -> tp.Numpy:
        return deep(True)(x)

    assert not any(name.endswith(AGAIN) for name in job.compile().optimized_logical.ops)
