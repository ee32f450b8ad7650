"""Optimizer-state sharding: equal results, a part of the memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel_forms import (
    assert_close,
    assert_same,
    batches,
    emulated,
    make_job,
    mlp,
    train,
    trained,
)

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError
from flow_core.costs.clock import simulate_step
from flow_core.costs.task_costs import TaskCosts
from flow_core.frontend.session import variable_storage as memory
from flow_core.frontend.session.session import default_session
from flow_core.frontend.session.variable_storage import initial_value
from flow_core.sharding.topology import Device

MODES = ("non_distributed", "distributed_split")


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def apart() -> Any:
    """Devices have memory of their own, as those of a cluster."""
    settings = flow.function_config()
    settings.share_replicas(False)
    return settings


def config(mode: str, threshold: int = 1, ahead: int | None = None) -> Any:
    settings = apart()
    if ahead is not None:
        settings.train.optimizer_placement_optimization_ahead(ahead)
    settings.train.optimizer_placement_optimization_mode(mode)
    settings.train.optimizer_placement_optimization_threshold(threshold)
    return settings


@pytest.mark.representative(
    "momentum-2-non|(adam|lamb|lars)-3-distributed", "the others differ in the optimizer"
)
@pytest.mark.arithmetic
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("rule", ["momentum", "adam", "lamb", "clipped"])
def test_training_equals_one_device(rule: str, count: int, mode: str) -> None:
    one = trained("0:0", rule=rule)
    many = trained(f"0:0-{count - 1}", rule=rule, config=config(mode))
    again = trained(f"0:0-{count - 1}", rule=rule, config=config(mode))
    assert_close(many, one)
    assert_same(again, many)


def kept(job: Any) -> dict[str, dict[str, int]]:
    """Bytes of each variable on each device, as allocated."""
    train(job, steps=1)
    stored = default_session().stored()
    return {
        name: {device: part.array.nbytes for device, part in variable.parts.items()}
        for name, variable in stored.items()
    }


def per_device(variables: dict[str, dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for parts in variables.values():
        for device, nbytes in parts.items():
            total[device] = total.get(device, 0) + nbytes
    return total


def test_every_device_keeps_a_part_of_weights_and_states() -> None:
    whole = kept(make_job("0:0-3", rule="adam", config=apart()))
    flow.clear_default_session()
    split = kept(make_job("0:0-3", rule="adam", config=config("distributed_split")))
    for name in ("h-weight", "h-weight-m", "h-weight-v", "o-bias-v"):
        logical = whole[name][Device("gpu", 0, 0)]
        assert set(whole[name].values()) == {logical}
        assert len(split[name]) == 4
        assert sum(split[name].values()) == logical
        assert max(split[name].values()) <= logical * 2 / 5  # 5 rows: 2, 1, 1, 1
    assert max(per_device(split).values()) < 0.35 * max(per_device(whole).values())


def test_each_weight_lives_on_one_device() -> None:
    whole = kept(make_job("0:0-3", rule="adam", config=apart()))
    flow.clear_default_session()
    single = kept(make_job("0:0-3", rule="adam", config=config("non_distributed")))
    homes = {name: tuple(parts) for name, parts in single.items() if "System" not in name}
    assert all(len(devices) == 1 for devices in homes.values())
    assert len({homes[f"{layer}-{part}"] for layer in "ho" for part in ("weight", "bias")}) == 4
    assert all(homes[f"h-weight{state}"] == homes["h-weight"] for state in ("-m", "-v"))
    assert sum(per_device(single).values()) < 0.3 * sum(per_device(whole).values())


def test_gradients_go_to_their_owners_only() -> None:
    ledger = make_job("0:0-3", config=config("distributed_split")).plan().ledger
    assert any(e.value == "h-weight:0" and "all_gather" in e.steps for e in ledger)
    gradients = [e for e in ledger if "/grad/" in e.value]
    assert any("reduce_scatter" in e.steps for e in gradients)
    assert not any({"all_gather", "all_reduce"} & set(e.steps) for e in gradients)


def test_small_weights_stay_as_they_are() -> None:
    job = make_job("0:0-3", config=config("distributed_split", threshold=16))
    shards = list(job.plan().shards.values())
    assert {region for name, region in shards if name == "h-bias"} == {((0, 16),)}
    assert len({region for name, region in shards if name == "h-weight"}) == 4


def test_the_default_threshold_is_1024_elements_per_device() -> None:
    settings = flow.function_config()
    settings.optimizer_placement_optimization_mode("distributed_split")
    shards = make_job("0:0-1", config=settings).plan().shards.values()
    assert {region for name, region in shards if name == "h-weight"} == {((0, 16), (0, 12))}


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"non_distributed.*distributed_split"):
        flow.function_config().optimizer_placement_optimization_mode("zero")


def predict_job() -> Any:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((6, 12))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-1"):
            return mlp(x)

    return predict


@pytest.mark.representative(
    r"\[distributed_split-train\]", "the weights that the other job has to gather"
)
@pytest.mark.parametrize("first", ["train", "predict"])
@pytest.mark.parametrize("mode", MODES)
def test_other_jobs_see_the_trained_weights(mode: str, first: str) -> None:
    x = batches(1)[0][0][:6]

    def run(settings: Any) -> Any:
        flow.clear_default_session()
        job, predict = make_job("0:0-3", config=settings), predict_job()
        before = predict(x) if first == "predict" else None
        train(job, steps=2)
        return before, predict(x)

    for a, b in zip(run(config(mode)), run(None), strict=True):
        assert a is b is None or np.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_checkpoints_load_into_parts_before_and_after_the_first_step(
    mode: str, tmp_path: Path
) -> None:
    losses, values = trained("0:0", steps=3)
    flow.clear_default_session()
    train(make_job("0:0"), steps=1)
    flow.checkpoint.save(str(tmp_path / "one"))
    flow.clear_default_session()
    job = make_job("0:0-3", config=config(mode))
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "one")))
    later = np.array([job(*feeds) for feeds in batches(3)[1:]])
    np.testing.assert_allclose(later, losses[1:], rtol=3e-5)
    found = {k: v.numpy() for k, v in default_session().stored().items()}
    np.testing.assert_allclose(found["h-weight"], values["h-weight"], rtol=2e-4, atol=2e-5)
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "one")))
    np.testing.assert_allclose(job(*batches(2)[1]), losses[1], rtol=3e-5)


def test_parts_of_a_variable_begin_with_its_initial_value() -> None:
    """Whatever was in the memory that they are given."""
    job = make_job("0:0-2", config=config("distributed_split"))
    here = default_session()
    job.prepare()
    info = here.declared["h-weight"]
    shape = info.type.shape
    regions = [((0, 6), (0, 12)), ((6, 11), (0, 12)), ((11, 16), (0, 12))]
    expected = initial_value(info)
    for i, region in enumerate(regions):
        part = here.variable("h-weight", Device("gpu", 0, i), region)
        junk = [np.full(shape, 7, np.float32) for _ in range(50)]
        del junk
        np.testing.assert_array_equal(part, expected[slice(*region[0])])


def test_initial_values_are_made_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a program asks for them anew: no device needs memory for the whole."""
    made: list[Any] = []

    def seen(info: Any, region: Any = None, out: Any = None) -> Any:
        made.append((info.name, region))
        return initial_value(info, region, out)

    monkeypatch.setattr(memory, "initial_value", seen)
    job = make_job("0:0-3", config=config("distributed_split"))
    job(*batches(1)[0])
    regions = [((a, a + 4), (0, 12)) for a in range(0, 16, 4)]
    for _ in range(2):
        assert sorted(r for name, r in made if name == "h-weight") == regions
        made.clear()
        default_session().initialize()
    stored = default_session().stored()["h-weight"]
    np.testing.assert_array_equal(stored.numpy(), initial_value(stored.info))


def test_replicas_of_tensor_parallelism_keep_parts_of_their_parts() -> None:
    """Over a hierarchy of 2 x 2, weights are (B, S) and become (S(0), S)."""

    def body(x: Any) -> Any:
        return mlp(x, model_distribute=flow.distribute.broadcast())

    one = trained("0:0", body, "adam")
    many = trained("0:0-3", body, "adam", config("distributed_split"), hierarchy=(2, 2))
    assert_close(many, one)
    regions = {part.region for part in default_session().stored()["h-weight-m"].parts.values()}
    assert regions == {((a, a + 4), (0, 12)) for a in range(0, 16, 4)}


LAYERS, WIDTH = 16, 512


def deep_job(mode: str | None, ahead: int | None = None) -> Any:
    """Layers whose weights are much larger than their activations, on devices without kernels."""
    flow.clear_default_session()
    settings = apart() if mode is None else config(mode, ahead=ahead)
    settings.sbp_selector("greedy")

    @flow.global_function(type="train", function_config=settings)
    def job(x: tp.Numpy.Placeholder((32, WIDTH))) -> tp.Numpy:
        with flow.scope.placement("null", "0:0-3"):
            for i in range(LAYERS):
                ones = flow.ones_initializer()
                x = flow.math.tanh(
                    flow.matmul(x, flow.get_variable(f"w{i}", (WIDTH, WIDTH), initializer=ones))
                )
            loss = flow.math.reduce_mean(x)
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
        return loss

    return job


def held(job: Any) -> tuple[float, float]:
    """The bytes of the largest arena, and the most bytes of gathered copies in use at a time."""
    plan = job.compile_classes().plan
    arena = max(plan.arenas, key=lambda a: a.nbytes)
    copies = [
        b for b in plan.buffers
        if b.memory == arena.device and b.kind == "temp" and b.op.startswith("w") and "/box" in b.op
    ]  # fmt: skip
    most = max(sum(b.type.nbytes for b in copies if b.first <= a.first <= b.last) for a in copies)
    return arena.nbytes / (4 * WIDTH**2), most / (4 * WIDTH**2)


def test_gathered_weights_are_freed_and_gathered_again() -> None:
    """Three layers' weights and the activations; otherwise all weights are gathered at the peak."""
    arena, copies = held(deep_job("distributed_split", ahead=1))
    activations = (LAYERS + 1) * 8 * WIDTH / WIDTH**2
    assert arena <= 3 + activations, arena
    assert copies <= 2
    kept, all_copies = held(deep_job("distributed_split"))
    assert kept >= LAYERS - 1
    assert all_copies >= LAYERS - 2


def simulated(job: Any) -> float:
    session = default_session()
    costs = TaskCosts(job.compile_classes().plan, session.registry.ops, session.costs)
    return simulate_step(costs, processes=4).seconds


def test_gathering_again_takes_little_time_where_layers_compute() -> None:
    once = simulated(deep_job("distributed_split"))
    assert simulated(deep_job("distributed_split", ahead=1)) <= 1.1 * once


@pytest.mark.arithmetic
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_gathering_again_changes_no_bit(mode: str, micro_batches: int) -> None:
    def found(**options: Any) -> Any:
        settings = config(mode, **options)
        settings.train.num_gradient_accumulation_steps(micro_batches)
        return trained("0:0-3", rule="adam", config=settings)

    once = found()
    for ahead in (1, 2):
        assert_same(found(ahead=ahead), once)


def test_weights_of_mixed_precision_are_cast_again() -> None:
    settings = config("distributed_split", ahead=1)
    settings.enable_auto_mixed_precision(True)
    ops = make_job("0:0-3", config=settings).compile().optimized_logical.ops.values()
    again = [op for op in ops if op.name.endswith("/recomputed")]
    assert {op.type for op in again} == {"identity", "cast"}
