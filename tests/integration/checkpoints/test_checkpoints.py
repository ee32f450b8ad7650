"""Checkpoints of jobs: what is saved, and that training goes on as if it had never stopped."""

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError

BATCH = 8
IMAGES = np.random.default_rng(0).normal(size=(10, BATCH, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, (10, BATCH)).astype(np.int32)

Optimizer = Callable[[], Any]


def schedule() -> Any:
    return flow.optimizer.CosineScheduler(base_lr=0.1, steps=20, alpha=0.1)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda: flow.optimizer.SGD(schedule(), momentum=0),
    "momentum": lambda: flow.optimizer.SGD(schedule(), momentum=0.9),
    "adam": lambda: flow.optimizer.Adam(schedule(), do_bias_correction=True),
    "clipped": lambda: flow.optimizer.SGD(
        schedule(), momentum=0.9, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.1)
    ),
    "scaled": lambda: flow.optimizer.SGD(
        schedule(),
        momentum=0,
        loss_scale_policy=flow.optimizer.loss_scale.dynamic_loss_scale(64.0, 3),
    ),
}


def network(x: Any, training: bool) -> Any:
    weights = flow.random_uniform_initializer(-0.5, 0.5)
    h = flow.layers.dense(x, 12, flow.nn.relu, kernel_initializer=weights, name="hidden")
    h = flow.layers.batch_normalization(h, training=training, momentum=0.9, name="norm")
    h = flow.nn.dropout(h, 0.3) if training else h
    return flow.layers.dense(h, 3, kernel_initializer=weights, name="output")


def train_job(optimizer: Optimizer = OPTIMIZERS["momentum"]) -> Any:
    @flow.global_function(type="train")
    def train(
        x: tp.Numpy.Placeholder((BATCH, 6)),
        y: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, network(x, True))
        optimizer().minimize(loss)
        return loss

    return train


def eval_job() -> Any:
    @flow.global_function(type="predict")
    def evaluate(x: tp.Numpy.Placeholder((BATCH, 6))) -> tp.Numpy:
        return network(x, False)

    return evaluate


def steps(job: Any, first: int, last: int) -> list[Any]:
    return [job(IMAGES[i], LABELS[i]) for i in range(first, last)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = steps(train_job(OPTIMIZERS[name]), 0, 10)
    flow.clear_default_session()
    checkpoint, path = flow.train.CheckPoint(), str(tmp_path / "saved")
    begun = steps(train_job(OPTIMIZERS[name]), 0, 5)
    checkpoint.save(path)
    flow.clear_default_session()
    job = train_job(OPTIMIZERS[name])
    checkpoint.load(path)
    np.testing.assert_array_equal(begun + steps(job, 5, 10), whole)


def test_loading_into_a_job_that_has_run_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    job, path = train_job(), str(tmp_path / "saved")
    steps(job, 0, 3)
    flow.train.CheckPoint().save(path)
    first = steps(job, 3, 6)
    flow.train.CheckPoint().load(path)
    np.testing.assert_array_equal(steps(job, 3, 6), first)


def test_initializing_starts_again() -> None:
    job = train_job()
    first = steps(job, 0, 3)
    flow.train.CheckPoint().init()
    np.testing.assert_array_equal(steps(job, 0, 3), first)


def test_dropout_differs_from_step_to_step() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((100,))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", shape=(1,), initializer=flow.zeros_initializer())
        OPTIMIZERS["sgd"]().minimize(w)
        return flow.nn.dropout(x, 0.5), flow.nn.dropout(x, 0.5)

    x = np.ones(100, np.float32)
    (a, b), (c, d) = job(x), job(x)
    assert (a != b).any()
    assert (a != c).any()
    assert (b != d).any()
    flow.clear_default_session()
    np.testing.assert_array_equal(job(x), (a, b))
    np.testing.assert_array_equal(job(x), (c, d))


def test_dropout_is_off_in_predict_jobs() -> None:
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((100,))) -> tp.Numpy:
        return flow.nn.dropout(x, 0.5)

    np.testing.assert_array_equal(job(np.ones(100, np.float32)), np.ones(100))


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from test_checkpoints import steps, train_job
for loss in steps(train_job(), 0, 3):
    print(loss.tobytes().hex())
"""


@pytest.mark.slow
def test_two_processes_give_the_same_numbers() -> None:
    code = PROGRAM.format(folder=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # as of this module
    other = processes.run([sys.executable, "-c", code], env=environment, check=True)
    mine = "".join(f"{loss.tobytes().hex()}\n" for loss in steps(train_job(), 0, 3))
    assert other.stdout == mine


def test_an_eval_job_loads_what_a_train_job_saved(tmp_path: Path) -> None:
    train, path = train_job(), str(tmp_path / "saved")
    steps(train, 0, 4)
    values = {k: v.numpy() for k, v in flow.get_all_variables().items()}
    flow.train.CheckPoint().save(path)
    flow.clear_default_session()
    evaluate = eval_job()
    flow.train.CheckPoint().load(path)
    loaded = {k: v.numpy() for k, v in flow.get_all_variables().items()}
    assert set(loaded) < set(values)
    for name, value in loaded.items():
        np.testing.assert_array_equal(value, values[name])
    first = evaluate(IMAGES[0])
    flow.clear_default_session()
    assert (evaluate(IMAGES[0]) != first).any()


def test_missing_and_misshapen_variables_are_listed_in_one_error(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    steps(train_job(), 0, 1)
    flow.train.CheckPoint().save(path)
    flow.clear_default_session()

    @flow.global_function(type="predict")
    def other(x: tp.Numpy.Placeholder((BATCH, 6))) -> tp.Numpy:
        h = flow.layers.dense(x, 13, name="hidden")
        return flow.layers.dense(h, 13, name="outputs")

    before = other(IMAGES[0])
    with pytest.raises(CheckpointError) as caught:
        flow.train.CheckPoint().load(path)
    message = str(caught.value)
    for part in (
        "misshapen  'hidden-weight'",
        "misshapen  'hidden-bias'",
        "missing    'outputs-weight'",
        "missing    'outputs-bias'",
        "did you mean output-weight?",
        Path(__file__).name,
    ):
        assert part in message
    np.testing.assert_array_equal(other(IMAGES[0]), before)


def test_a_checkpoint_of_a_part_loads_and_the_rest_keeps_its_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "saved")
    steps(train_job(), 0, 1)
    flow.train.CheckPoint().save(path)
    saved = flow.get_all_variables()["hidden-weight"].numpy()
    flow.clear_default_session()

    @flow.global_function(type="predict")
    def other(x: tp.Numpy.Placeholder((BATCH, 6))) -> tuple[tp.Numpy, tp.Numpy]:
        hidden = flow.layers.dense(x, 12, name="hidden")
        new = flow.get_variable("new", (2,), initializer=flow.constant_initializer(7))
        return hidden, new

    flow.train.CheckPoint().load(path)
    _hidden, new = other(IMAGES[0])
    assert new.tolist() == [7, 7]
    loaded = flow.get_all_variables()
    np.testing.assert_array_equal(loaded["hidden-weight"].numpy(), saved)
    assert "1 variables are missing from it, and keep their values: new" in caplog.text


def test_a_checkpoint_of_other_variables_is_refused(tmp_path: Path) -> None:
    flow.checkpoint.save(str(tmp_path / "saved"), {"other": np.ones(3, np.float32)})
    train_job()
    with pytest.raises(CheckpointError, match=r"missing    'hidden-weight'(.|\n)*extra +'other'"):
        flow.train.CheckPoint().load(str(tmp_path / "saved"))


def test_a_save_refuses_to_overwrite(tmp_path: Path) -> None:
    steps(train_job(), 0, 1)
    flow.train.CheckPoint().save(str(tmp_path / "saved"))
    with pytest.raises(CheckpointError, match="already exists"):
        flow.train.CheckPoint().save(str(tmp_path / "saved"))


def test_getting_and_saving_by_name(tmp_path: Path) -> None:
    steps(train_job(), 0, 2)
    path, part = str(tmp_path / "all"), str(tmp_path / "part")
    flow.checkpoint.save(path)
    saved = flow.checkpoint.get(path)
    now = flow.get_all_variables()
    assert saved.keys() == now.keys()
    for name, value in saved.items():
        assert value.shape == now[name].shape
        assert value.dtype == now[name].dtype
        np.testing.assert_array_equal(value.numpy(), now[name].numpy())
    flow.checkpoint.save(part, {"a": saved["hidden-weight"], "b": np.arange(3, dtype=np.int32)})
    again = flow.checkpoint.get(part)
    np.testing.assert_array_equal(again["a"].numpy(), now["hidden-weight"].numpy())
    np.testing.assert_array_equal(again["b"].numpy(), [0, 1, 2])
    single = flow.checkpoint.get(str(Path(path) / "hidden-bias"))
    np.testing.assert_array_equal(single.numpy(), now["hidden-bias"].numpy())


def test_the_manager_saves_and_restores_the_latest(tmp_path: Path) -> None:
    job = train_job()
    manager = flow.train.SimpleCheckPointManager(str(tmp_path / "many"))
    manager.initialize_or_restore()
    assert len(manager.list_checkpoints()) == 1
    steps(job, 0, 3)
    manager.save()
    wanted = steps(job, 3, 5)
    flow.clear_default_session()
    job = train_job()
    manager = flow.train.SimpleCheckPointManager(str(tmp_path / "many"))
    manager.initialize_or_restore()
    assert len(manager.list_checkpoints()) == 2
    np.testing.assert_array_equal(steps(job, 3, 5), wanted)


def test_a_save_waits_for_the_steps_in_flight(tmp_path: Path) -> None:
    @flow.global_function(type="train")
    def train() -> tp.Callback[tp.Numpy]:
        w = flow.get_variable("w", shape=(1,), initializer=flow.zeros_initializer())
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(w)
        return w

    got: list[float] = []
    for i in range(7):
        train()(lambda w: got.append(float(w[0])))
        if i == 4:
            flow.train.CheckPoint().save(str(tmp_path / "saved"))
            assert got == [0.0, -1.0, -2.0, -3.0, -4.0]
    (value,) = flow.checkpoint.get(str(tmp_path / "saved"))["w"].numpy()
    assert value == -5.0


def test_a_save_in_a_callback_is_of_one_moment(tmp_path: Path) -> None:
    names = ["a", "b"]

    @flow.global_function(type="train")
    def train() -> tp.Callback[tp.Numpy]:
        a, b = (
            flow.get_variable(n, shape=(5000,), initializer=flow.zeros_initializer()) for n in names
        )
        rate = flow.optimizer.PiecewiseConstantScheduler([], [5000.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(a + b)
        return a

    paths = [str(tmp_path / str(i)) for i in range(5)]
    for path in paths:
        train()(lambda _, path=path: flow.train.CheckPoint().save(path))
    flow.sync_default_session()
    for path in paths:
        saved = flow.checkpoint.get(path)
        a, b = (saved[name].numpy() for name in names)
        np.testing.assert_array_equal(a, b)
        counter = saved["System-Train-TrainStep-train"].numpy()
        np.testing.assert_array_equal(a, np.full(5000, -counter[0], np.float32))


def test_weights_written_by_hand_load(tmp_path: Path) -> None:
    """The layout of older versions: a folder per variable with its raw data alone."""
    for name, shape in (("hidden-weight", (12, 6)), ("hidden-bias", (12,))):
        (tmp_path / "old" / name).mkdir(parents=True)
        np.full(shape, 0.5, np.float32).tofile(tmp_path / "old" / name / "out")

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((BATCH, 6))) -> tp.Numpy:
        return flow.layers.dense(x, 12, name="hidden")

    with pytest.raises(CheckpointError, match="incomplete no file 'snapshot_done'"):
        flow.train.CheckPoint().load(str(tmp_path / "old"))
    flow.train.CheckPoint().load(str(tmp_path / "old"), strict=False)
    np.testing.assert_allclose(
        job(np.ones((BATCH, 6), np.float32)), np.full((BATCH, 12), 3.5), rtol=1e-6
    )


def test_saving_at_the_very_end_of_a_program(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import oneflow as flow, oneflow.typing as tp
        @flow.global_function(type="train")
        def train() -> tp.Callback[tp.Numpy]:
            w = flow.get_variable("w", shape=(1,), initializer=flow.zeros_initializer())
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
            flow.optimizer.SGD(rate, momentum=0).minimize(w)
            return w
        for i in range(9):
            train()(lambda w: None)
        flow.train.CheckPoint().save({str(tmp_path / "saved")!r})
    """)
    processes.run([sys.executable, "-c", program], check=True)
    assert float(flow.checkpoint.get(str(tmp_path / "saved"))["w"].numpy()[0]) == -9.0
