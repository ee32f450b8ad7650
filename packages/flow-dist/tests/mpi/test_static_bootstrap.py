"""Static bootstrap: the user starts a script once on each machine."""

import contextlib
import importlib.util
import logging
import os
import re
import stat
import sys
from pathlib import Path

import processes
import pytest
from launching import mpich
from two_hosts import two_hosts, why_not

from flow_dist.bootstrap.membership import LaunchError
from flow_dist.bootstrap.slurm import FIRST_PORT, master_of_step
from flow_dist.bootstrap.versions import check_versions, own_versions
from flow_dist.control.secret import job_token, secret_file
from flow_dist.mpi import static_bootstrap
from flow_dist.mpi.static_bootstrap import connect, own_place

MACHINES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


@pytest.mark.parametrize(
    ("machines", "own", "place"),
    [
        (MACHINES, {"10.0.0.2", "172.17.0.1"}, 1),
        (MACHINES, {"192.168.7.7"}, None),
        (["a", "b"], {"b", "10.0.0.9"}, 1),
        (["127.0.0.1", "localhost"], {"10.0.0.1"}, None),
        (["10.0.0.1", "10.1.0.1"], {"10.0.0.1", "10.1.0.1"}, None),
        (["10.0.0.1", "127.0.0.1"], {"10.0.0.1"}, None),
    ],
)
def test_a_host_finds_itself(machines: list[str], own: set[str], place: int | None) -> None:
    assert own_place(machines, own) == place


@pytest.mark.parametrize(
    ("machines", "own"),
    [
        (["127.0.0.1", "10.0.0.2"], {"10.0.0.5"}),  # another host on each of them
        (["10.0.0.1", "10.1.0.1", "10.0.0.2"], {"10.0.0.1", "10.1.0.1"}),
    ],
)
def test_addresses_that_mean_several_hosts(machines: list[str], own: set[str]) -> None:
    with pytest.raises(LaunchError, match="one address per machine"):
        own_place(machines, own)


def test_one_process_that_is_all_machines_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert own_place(MACHINES, {"192.168.7.7"}) is None
    assert "this process is all 3 machines of flow.env.machine" in caplog.text


def test_machines_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_bootstrap, "own_addresses", lambda: ["10.0.0.3"])
    with pytest.raises(LaunchError, match=r"flow\.config\.machine_num"):
        connect(MACHINES, 2, None)
    monkeypatch.setattr(static_bootstrap, "own_addresses", lambda: ["10.0.0.1"])
    assert connect(MACHINES, 1, None) is None


def test_what_a_launcher_says_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_bootstrap, "own_addresses", lambda: ["10.0.0.1"])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert connect(MACHINES, 3, None) is None


def test_the_secret_is_the_user_s_own(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    token = job_token(env, "a", 1)
    path = secret_file(env)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]
    assert job_token(env, "a", 1) == token
    assert job_token(env, "a", 2) != token
    assert job_token({**env, "HOME": str(tmp_path / "b")}, "a", 1) != token
    assert job_token({**env, "FLOW_DIST_TOKEN": "t"}, "a", 1) == "t"
    assert token not in path.read_text()


def test_a_secret_readable_by_others_is_rejected(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    job_token(env)
    secret_file(env).chmod(0o640)
    with pytest.raises(LaunchError, match="mode 0640"):
        job_token(env)
    secret_file(env).chmod(0o600)
    secret_file(env).write_text("")
    with pytest.raises(LaunchError, match="export the same FLOW_DIST_TOKEN"):
        job_token(env)
    with pytest.raises(LaunchError, match="export the same FLOW_DIST_TOKEN"):
        job_token({"XDG_CONFIG_HOME": "/dev/null"})


def test_the_address_of_rank_0_under_slurm() -> None:
    one = {"SLURM_STEP_NODELIST": "n7", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
    assert master_of_step(one, 0) == ("127.0.0.1", FIRST_PORT + 42)
    assert master_of_step(one, 1) == ("n7", FIRST_PORT + 42)
    assert master_of_step({**one, "SLURM_STEP_ID": "1"}, 1) == ("n7", FIRST_PORT + 143)
    assert master_of_step({}, 1) is None
    wrong = {"SLURM_JOB_ID": "²", "SLURM_STEP_NODELIST": "n[", "SLURM_STEP_ID": "4" * 5000}
    for name, value in wrong.items():
        with pytest.raises(LaunchError, match=f"reading {name}"):
            master_of_step({**one, name: value}, 1)
    assert master_of_step({"SLURM_STEP_NODELIST": "n7"}, 1) is None


def test_other_versions_are_refused_everywhere() -> None:
    mine = own_versions()
    assert {"flow-core", "flow-dist"} <= set(mine)
    more = {**mine, "some-plugin": "1"}
    check_versions((), lambda said: [said, more])
    with pytest.raises(LaunchError, match=r"flow-core 0\.0\.1 in rank 1 on b, but flow-core"):
        check_versions(("a", "b"), lambda said: [said, {**more, "flow-core": "0.0.1"}])


SCRIPT = """
import sys

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH = 4


def config_distributed(addresses):
    flow.config.gpu_device_num(2)
    flow.env.ctrl_port(9988)
    flow.env.machine([{"addr": address} for address in addresses])


@flow.global_function(type="train")
def train_job(
    x: tp.Numpy.Placeholder((BATCH, 3)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
) -> tp.Numpy:
    logits = flow.layers.dense(x, 8, name="out", kernel_initializer=flow.truncated_normal(0.1))
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits, name="softmax_loss")
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss


if __name__ == "__main__":
    config_distributed(sys.argv[2:])
    if sys.argv[1] == "seeded":
        np.random.seed(0)
    flow.env.init()
    for step in range(3):
        loss = train_job(np.random.rand(BATCH, 3).astype("f4"), np.arange(BATCH, dtype="i4"))
        print(step, loss.tolist())
    if sys.argv[1] == "fails" and flow.current_machine_id() == 1:
        raise ValueError("on the second machine")
    last = train_job(np.ones((BATCH, 3), "f4"), np.zeros(BATCH, "i4"))
    print(flow.current_machine_id(), last.mean())
"""


def without_launcher(**env: str) -> dict[str, str]:
    """Return the environment of a process that the user starts."""
    launchers = ("PMI", "OMPI", "FLOW_DIST", "SLURM")
    usual = {n: v for n, v in os.environ.items() if not n.startswith(launchers)}
    return {**usual, "ONEFLOW_EMULATE_GPUS": "2", "OMP_NUM_THREADS": "1", **env}


def started_by_hand(
    script: Path, task: str, homes: tuple[Path, Path]
) -> list[processes.Completed[str]]:
    """Run a script on two hosts, starting with the second one."""
    mpich()
    reason = why_not() or ("" if importlib.util.find_spec("oneflow") else "no oneflow")
    if reason:
        pytest.skip(reason)
    with two_hosts() as hosts:
        command = [sys.executable, str(script), task, *hosts.addresses]
        return processes.run_together(
            (hosts.on(n, command), without_launcher(HOME=str(homes[n]))) for n in (1, 0)
        )[::-1]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "distributed_train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_training_on_two_hosts_by_static_bootstrap(script: Path, tmp_path: Path) -> None:
    first, second = started_by_hand(script, "seeded", (tmp_path, tmp_path))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert not second.stdout
    assert "waits at 10.77." in first.stderr
    alone = processes.run(
        [sys.executable, str(script), "seeded", "10.0.0.1", "10.0.0.2"],
        env={**os.environ, "ONEFLOW_EMULATE_GPUS": "2", "OMP_NUM_THREADS": "1"},
    )
    assert alone.returncode == 0, alone.stderr
    assert first.stdout == alone.stdout
    assert len(first.stdout.splitlines()) == 4


@pytest.mark.exhaustive
def test_a_failure_is_reported_on_both_hosts(script: Path, tmp_path: Path) -> None:
    first, second = started_by_hand(script, "fails", (tmp_path, tmp_path))
    assert (first.returncode, second.returncode) == (1, 1)
    assert re.search(r"flow-dist: rank 1 of 2 on .*ValueError: on the second", first.stderr)
    assert "ValueError: on the second machine" in second.stderr


@pytest.mark.slow
def test_other_secrets_are_refused(script: Path, tmp_path: Path) -> None:
    """Homes that are not shared: the message says what to copy."""
    for name in "ab":
        (tmp_path / name).mkdir()
    mpich()
    if why_not():
        pytest.skip(str(why_not()))
    with two_hosts() as hosts, contextlib.ExitStack() as stack:
        command = [sys.executable, str(script), "seeded", *hosts.addresses]
        first, second = (
            stack.enter_context(
                processes.Program(hosts.on(n, command), env=without_launcher(HOME=home))
            )
            for n, home in enumerate((str(tmp_path / "a"), str(tmp_path / "b")))
        )
        _, said = second.communicate()
        assert second.returncode == 1
        assert "copy it from one host to all others" in said
        first.end()
        assert "no proof of the job's token" in first.communicate()[1]
