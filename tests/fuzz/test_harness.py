"""The harness finds each kind of failure, names its case, and goes on behind it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import fuzzing
import processes
import pytest
from fuzzing.__main__ import rows, split
from fuzzing.harness import CHUNK, Run
from fuzzing.misbehaving import AT, LIMITS, MISTAKES, TARGETS, work_badly
from fuzzing.targets import TARGETS as REAL
from fuzzing.worker import TRIES, Failure, Trial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits come from Linux")


def test_each_mistake_is_found_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # no /dev/shm
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = Run(dict.fromkeys(MISTAKES, 20), 3, limits=LIMITS, body=work_badly)
    run.run()
    assert not list(tmp_path.glob("flow-fuzz-*")), "killed workers leave their files behind"
    for name, (_, words) in MISTAKES.items():
        score = run.scores[name]
        assert [failure.number for failure in score.failures] == [AT]
        assert words in score.failures[0].what
        assert (score.read, score.refused, score.cases) == (9, 10, 20)
    assert rows(run.scores)[-1][1] == f"{20 * len(MISTAKES)}"


def test_a_case_follows_from_its_seed(tmp_path: Path) -> None:
    trial = Trial(TARGETS["raises"], tmp_path, LIMITS)
    cases = {TARGETS["raises"].case(trial.seeds, 5, number) for number in range(30)}
    assert len(cases) == 30
    assert cases == {TARGETS["raises"].case(trial.seeds, 5, number) for number in range(30)}
    what, error = trial.attempt(5, AT)
    assert what.startswith("KeyError")
    assert isinstance(error, KeyError)
    assert Failure("png", 5, AT, what).command == f"nox -s fuzz -- png --seed 5 --case {AT}"


@pytest.mark.slow
def test_a_case_that_is_slow_once_is_tried_again(tmp_path: Path) -> None:
    def opened(slow: int) -> Trial:
        made = replace(TARGETS["slow"], open=lambda _: lambda *_: tries[-1] < slow and take_long())
        return Trial(made, tmp_path, LIMITS)

    take_long, tries = MISTAKES["slow"][0], [TRIES]
    assert opened(TRIES - 1).attempt(5, 1, tries.append) == ("read", None)
    assert tries[1:] == [*range(TRIES)]
    assert "page faults" in opened(TRIES).attempt(5, 1, tries.append)[0]


@pytest.mark.slow
def test_a_run_goes_on_where_another_one_ended() -> None:
    run = Run({"raises": CHUNK}, 3, limits=LIMITS, first=AT + 1, body=work_badly)
    run.run()
    score = run.scores["raises"]
    assert (score.cases, score.failures) == (CHUNK, [])


def test_the_cases_of_a_full_run() -> None:
    counts = split(list(REAL), 1_000_000)
    assert sum(counts.values()) == pytest.approx(1_000_000, abs=len(counts))
    assert min(counts.values()) > 10_000


SEEDS = """
import zlib
from fuzzing.targets import TARGETS
print({name: zlib.crc32(b"".join(target.seeds())) for name, target in TARGETS.items()})
"""


@pytest.mark.slow
def test_the_seeds_of_all_formats_are_the_same_in_each_process() -> None:
    helpers = str(Path(fuzzing.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": helpers, "PYTHONHASHSEED": "random"}
    found = [processes.run([sys.executable, "-c", SEEDS], env=env, check=True) for _ in range(3)]
    assert found[0].stdout == found[1].stdout == found[2].stdout
