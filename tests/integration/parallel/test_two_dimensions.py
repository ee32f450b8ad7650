"""Data and tensor parallelism over a grid of 2 x 2 devices, asked for in the public API."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from parallel_forms import BATCH, INIT, assert_close, assert_same, emulated, make_job, trained

import oneflow as flow
from flow_core.frontend.session.session import default_session

GRID = (2, 2)
LENGTH, HEADS, SIZE = 3, 4, 2
WIDTH = HEADS * SIZE


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def weight(name: str, shape: tuple[int, ...], axis: int | None, grid: bool) -> Any:
    """A weight that is split on an axis over the second dimension of the grid."""
    hint: dict[str, Any] = {}
    if grid and axis is not None:
        hint = {"parallel_hierarchy": GRID, "parallel_distribution": ["B", f"S({axis})"]}
    return flow.get_variable(name, shape, initializer=INIT, **hint)


def rows(x: Any, grid: bool) -> Any:
    """A batch that is split over the first dimension of the grid."""
    return flow.hierarchical_parallel_cast(x, ["S(0)", "B"]) if grid else x


def perceptron(grid: bool) -> Callable[[Any], Any]:
    """Columns, then rows: one sum over the second dimension in each direction."""

    def body(x: Any) -> Any:
        x = rows(x, grid)
        h = flow.math.gelu(flow.matmul(x, weight("up", (12, 20), 1, grid)))
        h = rows(flow.matmul(h, weight("down", (20, 12), 0, grid)), grid)
        h = flow.nn.dropout(flow.math.tanh(h + x), rate=0.2, name="drop")
        return flow.matmul(h, weight("out", (12, 5), None, grid))

    return body


def attention(grid: bool) -> Callable[[Any], Any]:
    """Self-attention whose heads are split over the second dimension."""

    def split(x: Any, name: str) -> Any:
        y = flow.matmul(x, weight(name, (WIDTH, WIDTH), 1, grid))
        y = flow.reshape(y, (BATCH, LENGTH, HEADS, SIZE))
        return flow.transpose(y, perm=[0, 2, 1, 3])

    def body(x: Any) -> Any:
        x = flow.matmul(rows(x, grid), weight("in", (12, LENGTH * WIDTH), None, grid))
        x = flow.reshape(x, (BATCH * LENGTH, WIDTH))
        q, k, v = (split(x, name) for name in "qkv")
        scores = flow.nn.softmax(flow.matmul(q, k, transpose_b=True) * SIZE**-0.5)
        y = flow.transpose(flow.matmul(scores, v), perm=[0, 2, 1, 3])
        y = flow.reshape(y, (BATCH * LENGTH, WIDTH))
        y = rows(flow.matmul(y, weight("mix", (WIDTH, WIDTH), 0, grid)), grid)
        y = flow.layers.layer_norm(x + y, name="norm")
        y = flow.reshape(y, (BATCH, LENGTH * WIDTH))
        return flow.matmul(y, weight("out", (LENGTH * WIDTH, 5), None, grid))

    return body


def settings() -> Any:
    """The hints say it all; the optimal selector would weigh what they leave open."""
    config = flow.function_config()
    config.sbp_selector("greedy")
    return config


@pytest.mark.slow
@pytest.mark.representative(
    r"\[perceptron-clipped\]", "the rule that needs a norm over both dimensions"
)
@pytest.mark.parametrize(
    ("network", "rule"), [(perceptron, "adam"), (perceptron, "clipped"), (attention, "momentum")]
)
def test_training_on_a_grid_equals_one_device(network: Any, rule: str) -> None:
    one = trained("0:0", network(False), rule)
    grid = trained("0:0-3", network(True), rule, settings(), hierarchy=GRID)
    again = trained("0:0-3", network(True), rule, settings(), hierarchy=GRID)
    assert_close(grid, one)
    assert_same(again, grid)


@pytest.mark.slow
def test_replicas_split_what_they_hold_alike() -> None:
    """Weights of tensor parallelism are (B, S); sharded states make them (S(0), S)."""
    config = settings()
    config.optimizer_placement_optimization_mode("distributed_split")
    config.optimizer_placement_optimization_threshold(1)
    one = trained("0:0", perceptron(False), "adam")
    grid = trained("0:0-3", perceptron(True), "adam", config, hierarchy=GRID)
    assert_close(grid, one)
    stored = default_session().stored()
    regions = {part.region for part in stored["up-v"].parts.values()}
    assert regions == {((a, a + 6), (b, b + 10)) for a in (0, 6) for b in (0, 10)}


def test_weights_stay_on_their_devices() -> None:
    plan = make_job("0:0-3", perceptron(True), config=settings(), hierarchy=GRID).plan()
    moved = {entry.value.split(":")[0] for entry in plan.ledger if entry.nbytes}
    assert not {"up", "down", "out"} & moved
