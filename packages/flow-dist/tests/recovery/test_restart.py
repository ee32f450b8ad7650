"""Sharded checkpoints: any number of processes restores them, and damage is detected."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, JobError
from flow_core.base.shapes import balanced_range
from flow_dist.recovery import restart
from flow_dist.recovery.restart import Checkpoints, SingleProcess
from flow_dist.recovery.restart_files import Parts, data_file, list_file, write_part


@pytest.fixture(autouse=True)
def fresh_session() -> Iterator[None]:
    flow.clear_default_session()
    yield
    flow.clear_default_session()


def make_job(devices: str = "0:0") -> Any:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            w = flow.get_variable("w", (3, 2), initializer=flow.random_normal_initializer())
            out = flow.nn.dropout(flow.matmul(x, w), rate=0.4)
            loss = flow.math.reduce_sum(flow.math.square(out))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    return train


def feed(step: int) -> Any:
    return np.random.default_rng(step).standard_normal((4, 3)).astype(np.float32)


def losses(train: Any, first: int, stop: int) -> list[bytes]:
    return [train(feed(step)).tobytes() for step in range(first, stop)]


def test_training_goes_on_bit_by_bit(tmp_path: Path) -> None:
    straight = losses(make_job(), 0, 7)
    flow.clear_default_session()
    train, checkpoints = make_job(), Checkpoints(tmp_path, every=2)
    assert checkpoints.restore() == 0
    for step in range(5):
        assert train(feed(step)).tobytes() == straight[step]
        checkpoints.after(step)
    checkpoints.close()
    flow.clear_default_session()
    train, checkpoints = make_job(), Checkpoints(tmp_path)
    assert checkpoints.restore() == 4
    assert losses(train, 4, 7) == straight[4:]
    checkpoints.close()


def test_other_devices_go_on(tmp_path: Path) -> None:
    train, checkpoints = make_job(), Checkpoints(tmp_path)
    losses(train, 0, 3)
    checkpoints.save(3)
    checkpoints.close()
    straight = losses(train, 3, 5)
    flow.clear_default_session()
    train = make_job("0:0-1")
    assert Checkpoints(tmp_path).restore() == 3
    again = losses(train, 3, 5)
    for one, other in zip(straight, again, strict=True):
        np.testing.assert_allclose(*(np.frombuffer(x, np.float32) for x in (one, other)), 1e-5)


def test_a_save_is_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    train, checkpoints = make_job(), Checkpoints(tmp_path)
    losses(train, 0, 1)
    gate, write = threading.Event(), checkpoints._write
    checkpoints._write = lambda *args: (gate.wait(processes.scaled(10)), write(*args))[1]  # type: ignore[method-assign]
    checkpoints.save(1)
    after = losses(train, 1, 2)  # while the save waits
    assert not list(tmp_path.glob("step-*"))
    gate.set()
    checkpoints.close()
    flow.clear_default_session()
    train = make_job()
    assert Checkpoints(tmp_path).restore() == 1
    assert losses(train, 1, 2) == after


def saved(folder: Path, steps: int) -> None:
    train, checkpoints = make_job(), Checkpoints(folder, keep=5)
    for step in range(steps):
        losses(train, step, step + 1)
        checkpoints.after(step)
    checkpoints.close()
    flow.clear_default_session()


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    train, checkpoints = make_job(), Checkpoints(tmp_path, keep=2)
    (tmp_path / ".step-000000000001.saving-dead").mkdir()
    for step in range(4):
        losses(train, step, step + 1)
        checkpoints.after(step)
    checkpoints.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-000000000003", "step-000000000004"]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


DAMAGE = {
    "a bit of the data": lambda folder: flip(data_file(folder, 0)),
    "a bit of the list": lambda folder: flip(list_file(folder, 0)),
    "no data": lambda folder: data_file(folder, 0).unlink(),
    "half the data": lambda folder: data_file(folder, 0).write_bytes(b"x"),
    "no list": lambda folder: list_file(folder, 0).unlink(),
    "no mark": lambda folder: (folder / "snapshot_done").unlink(),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 3)
    make_job()
    DAMAGE[how](tmp_path / "step-000000000003")
    with caplog.at_level(logging.WARNING):
        assert Checkpoints(tmp_path).restore() == 2
    if how != "no mark":  # which is no checkpoint at all
        assert "skipped" in caplog.text
        assert "step-000000000003" in caplog.text
    assert "resuming at step 2" in caplog.text


def test_flow_itself_reads_it(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    train = make_job()
    flow.train.CheckPoint().load(str(tmp_path / "step-000000000001"))
    found = flow.checkpoint.get(str(tmp_path / "step-000000000001"))
    assert found["w"].shape == (3, 2)
    losses(train, 1, 2)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    @flow.global_function()
    def other() -> tp.Numpy:
        return flow.get_variable("w", (5,), initializer=flow.ones_initializer())

    with pytest.raises(CheckpointError, match="misshapen"):
        Checkpoints(tmp_path).restore()


def test_an_error_of_the_thread_is_raised_by_the_next_save(tmp_path: Path) -> None:
    train, checkpoints = make_job(), Checkpoints(tmp_path / "all")
    losses(train, 0, 1)
    (tmp_path / "all").rmdir()
    (tmp_path / "all").write_text("in the way")
    checkpoints.save(1)
    with pytest.raises(CheckpointError, match="saving"):
        checkpoints.save(2)
    checkpoints.close()


def test_wrong_numbers_and_places(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="every=0"):
        Checkpoints(tmp_path, every=0)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file"):
        Checkpoints(tmp_path / "file")


class _Meeting:
    """Ranks in threads of one process."""

    def __init__(self, rank: int, size: int, table: list[bytes], barrier: threading.Barrier):
        self.rank, self.size = rank, size
        self._table, self._barrier = table, barrier

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        self._table[self.rank] = text
        self._barrier.wait(processes.scaled(10))
        said = tuple(self._table)
        self._barrier.wait(processes.scaled(10))
        return said


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_any_sharding_is_restored(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, ...]], of: int
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    arrays = {
        f"v{n}": np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
        for n, shape in enumerate(shapes)
    }
    for rank in reversed(range(of)):
        mine = []
        for name, array in arrays.items():
            low, high = balanced_range(array.shape[0], of, rank)
            region = ((low, high), (0, array.shape[1]))
            mine.append((name, array.shape, region, array[low:high]))
        write_part(folder, 7, rank, of, "job", mine)
    with pytest.raises(CheckpointError, match="not complete"):
        Parts(folder)
    (folder / "snapshot_done").touch()
    found = Parts(folder)
    assert (found.step, found.of, list(found)) == (7, of, sorted(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_parts_of_two_saves_are_not_mixed(tmp_path: Path) -> None:
    whole = np.ones(2, np.float32)
    for rank, job in ((0, "a"), (1, "b")):
        write_part(tmp_path, 1, rank, 2, job, [("w", (2,), ((rank, rank + 1),), whole[:1])])
    (tmp_path / "snapshot_done").touch()
    with pytest.raises(CheckpointError, match="different saves"):
        Parts(tmp_path)


def test_a_part_that_is_missing_is_waited_for_and_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, patience=0.1)
    world = _Meeting(0, 2, [b"", b""], threading.Barrier(1))
    with pytest.raises(CheckpointError, match=r"no parts of ranks \[1\]"):
        checkpoints._write(1, world, "job", [])
    checkpoints.close()
    assert not list(tmp_path.glob("step-*"))


def test_no_process_goes_on_before_a_save_is_complete(tmp_path: Path) -> None:
    """A process that dies after `wait` takes no checkpoint with it."""
    makers = [Checkpoints(tmp_path, patience=10) for _ in range(2)]
    worlds = [_Meeting(rank, 2, [b"", b""], threading.Barrier(1)) for rank in range(2)]
    complete = tmp_path / "step-000000000001" / "snapshot_done"
    seen = []

    def save(rank: int) -> None:
        time.sleep(0.2 * (1 - rank))  # the first process is the late one
        makers[rank]._write(1, worlds[rank], "job", [])
        seen.append(complete.is_file())

    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for maker in makers:
        maker.close()
    assert seen == [True, True]


def test_an_end_that_does_not_come_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, patience=0.1)
    world = _Meeting(1, 2, [b"", b""], threading.Barrier(1))
    with pytest.raises(CheckpointError, match="rank 0 has not finished it"):
        checkpoints._write(1, world, "job", [])
    checkpoints.close()


def test_ranks_agree_on_the_last_undamaged_checkpoint(tmp_path: Path) -> None:
    """One of them sees a damage, and all take the one before."""
    whole = np.arange(4, dtype=np.float32)
    for step in (1, 2):
        folder = tmp_path / f"step-{step:012d}"
        for rank in range(2):
            part = whole[2 * rank : 2 * rank + 2]
            write_part(folder, step, rank, 2, "j", [("w", (4,), ((2 * rank, 2 * rank + 2),), part)])
        (folder / "snapshot_done").touch()
    flip(data_file(tmp_path / "step-000000000002", 1))
    found: dict[int, list[bool]] = {0: [], 1: []}
    table, barrier = [b"", b""], threading.Barrier(2)

    def look(rank: int) -> None:
        world = _Meeting(rank, 2, table, barrier)
        for step in (2, 1):
            parts, problem = restart._checked(tmp_path / f"step-{step:012d}", world)
            said = world.gather(problem.encode(), "check")
            found[rank].append(parts is not None and not any(said))

    threads = [threading.Thread(target=look, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: [False, True], 1: [False, True]}


def test_alone() -> None:
    assert SingleProcess().gather(b"x", "y") == (b"x",)
    assert json.dumps(SingleProcess.size) == "1"
