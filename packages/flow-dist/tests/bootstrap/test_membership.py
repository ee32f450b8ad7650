"""Rank and size from the variables of every launcher, and of several at once."""

import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_dist.bootstrap.engines import ENGINES, Engine
from flow_dist.bootstrap.membership import LAUNCHER, LaunchError, Membership

places = st.integers(1, 64).flatmap(
    lambda size: st.tuples(
        st.integers(0, size - 1),
        st.just(size),
        st.integers(1, size).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
    )
)
some_sets = st.lists(st.sampled_from(ENGINES), min_size=1, unique=True)


def variables(names: Engine, rank: int, size: int, local: tuple[int, int]) -> dict[str, str]:
    values = map(str, (rank, size, *local))
    return dict(zip(names.variables, values, strict=False))


def test_no_launcher_variables() -> None:
    assert Membership.from_env({}) == Membership(0, 1, 0, 1, socket.gethostname(), "alone")


@pytest.mark.slow
@given(places, some_sets)
def test_sets_that_agree(place: tuple[int, int, tuple[int, int]], sets: list[Engine]) -> None:
    rank, size, local = place
    env = {"FLOW_DIST_HOST": "h"}
    for names in sets:
        env |= variables(names, rank, size, local)
    found = Membership.from_env(env)
    says_rank = any(names.local_rank for names in sets)
    local_rank = 0 if size == 1 else local[0] if says_rank else None
    assert (found.rank, found.size, found.local_rank) == (rank, size, local_rank)
    says_size = any(names.local_size for names in sets)
    assert found.local_size == (1 if size == 1 else local[1] if says_size else None)
    assert found.source == next(names.name for names in ENGINES if names in sets)


@pytest.mark.slow
@given(places, places, st.lists(st.sampled_from(ENGINES), min_size=2, max_size=2, unique=True))
def test_sets_that_disagree(
    one: tuple[int, int, tuple[int, int]],
    other: tuple[int, int, tuple[int, int]],
    sets: list[Engine],
) -> None:
    texts = [variables(names, *place) for names, place in zip(sets, (one, other), strict=True)]
    both = min(map(len, texts))
    if [*texts[0].values()][:both] == [*texts[1].values()][:both]:
        Membership.from_env(texts[0] | texts[1])
        return
    with pytest.raises(LaunchError) as caught:
        Membership.from_env(texts[0] | texts[1])
    assert all(names.name in str(caught.value) for names in sets)
    assert LAUNCHER in str(caught.value)
    for names, place in zip(sets, (one, other), strict=True):
        chosen = Membership.from_env(texts[0] | texts[1] | {LAUNCHER: names.name})
        assert (chosen.rank, chosen.size, chosen.source) == (*place[:2], names.name)


@pytest.mark.parametrize("names", ENGINES, ids=lambda names: names.name)
def test_half_a_set(names: Engine) -> None:
    selected = {LAUNCHER: names.name} if names.optional else {}
    for given_one, missing in ((names.rank, names.size), (names.size, names.rank)):
        with pytest.raises(LaunchError, match=f"without {missing}"):
            Membership.from_env({given_one: "1", **selected})


def test_pods_of_an_indexed_job() -> None:
    pod = {"JOB_COMPLETION_INDEX": "2"}
    assert Membership.from_env(pod).source == "alone"  # each index is a program of its own
    under_torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert Membership.from_env(pod | under_torchrun).rank == 5
    found = Membership.from_env({**pod, "JOB_COMPLETIONS": "4", "FLOW_DIST_HOST": "train-2"})
    assert found == Membership(2, 4, None, None, "train-2", "kubernetes")


MANIFEST = Path(__file__).parents[4] / "docs" / "cluster.md"


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_the_manifests_of_the_documentation(kind: str) -> None:
    """Their variables make the pods ranks of one program, with an address and a shared token."""
    blocks = re.findall(r"```yaml\n(.*?)```", MANIFEST.read_text(), re.DOTALL)
    (text,) = [block for block in blocks if re.search(rf"^kind: {kind}$", block, re.MULTILINE)]
    env = dict(re.findall(r'- \{name: (\w+), value: "([^"]*)"\}', text))
    (pods,) = set(re.findall(r"(?:completions|parallelism): (\d+)", text))
    assert "completionMode: Indexed" in text
    assert re.search(r"name: FLOW_DIST_TOKEN\n +valueFrom:\n +secretKeyRef:", text)
    service = re.findall(r"(?:subdomain|^  name): (\w+)", text, re.MULTILINE)
    for index in range(int(pods)):
        found = Membership.from_env(env | {"JOB_COMPLETION_INDEX": str(index)})
        assert (found.rank, found.size, found.source) == (index, int(pods), "kubernetes")
        assert found.master is not None
        host, name = found.master[0].split(".")
        assert host.endswith("-0")
        assert name in service


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "0 processes"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "reading RANK"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "'one'"),
        ({"RANK": "²", "WORLD_SIZE": "3"}, "'²'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "3"}, "3 processes on this host"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "local rank 2 of 2"),
        (
            {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"},
            "local rank 1 of 1",
        ),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "x"}, "reading MASTER_PORT"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "65535"}, "rank 0 listens on the next one"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "0"}, "a port from 1 to 65534"),
        ({"RANK": "1", "WORLD_SIZE": 5000 * "9"}, "reading WORLD_SIZE"),
        ({"FLOW_DIST_RESTART": "-1"}, "reading FLOW_DIST_RESTART"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1.0"},
            "reading TORCHELASTIC_RESTART_COUNT\n.*'1.0'",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_RESTART_COUNT": "again"},
            "reading SLURM_RESTART_COUNT",
        ),
        ({LAUNCHER: "slrum"}, "did you mean slurm?"),
    ],
)
def test_nonsense(env: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        Membership.from_env(env)


def test_a_slurm_job_without_a_step_is_one_process() -> None:
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    assert Membership.from_env(script).source == "alone"
    under_mpi = script | {"PMI_RANK": "3", "PMI_SIZE": "4"}
    assert Membership.from_env(under_mpi).rank == 3
    in_a_step = script | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
    assert Membership.from_env(in_a_step).rank == 3


def test_master_and_restarts() -> None:
    found = Membership.from_env(
        {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "FLOW_DIST_RESTART": "2"}
    )
    assert found.master == ("10.0.0.1", 29500)
    assert found.restart == 2
    for engine in ENGINES:
        if engine.restarts:
            env = variables(engine, 1, 2, (1, 2)) | {engine.restarts: "3"}
            assert Membership.from_env(env).restart == 3
            within = env | {"FLOW_DIST_RESTART": "1"}  # the engine itself was restarted
            assert Membership.from_env(within).restart == 4
    assert str(Membership(1, 2, None, None, "b")) == "rank 1 of 2 on b"
