"""Random numbers that a script draws without a seed, in several processes."""

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.random import bit_generator

from flow_dist.rng_sync import adopt_rank_0_state, synchronize_seeds


@pytest.fixture(autouse=True)
def _numpy_as_it_was() -> Iterator[None]:
    usual = vars(bit_generator)["randbits"]
    yield
    vars(bit_generator)["randbits"] = usual


def draw() -> list[Any]:
    """From all that has a state of its own, and from what is made without a seed."""
    shared = [random.random(), *np.random.rand(3), np.random.randn(), random.gauss()]  # noqa: NPY002
    return [*shared, *unseeded(), *unseeded()]


def unseeded() -> list[float]:
    kinds = (np.random.default_rng, np.random.RandomState, np.random.SFC64, np.random.SeedSequence)
    one, two, three, four = (kind() for kind in kinds)
    others = [np.random.Generator(kind).random() for kind in (three, np.random.MT19937(four))]
    return [one.random(), two.rand(), *others]


def test_chance_is_the_first_one_s() -> None:
    states = []

    def gather(said: Any) -> list[Any]:
        states.append(json.loads(json.dumps(said)))
        return states

    adopt_rank_0_state(0, gather)
    drawn = draw()
    synchronize_seeds("something else")
    adopt_rank_0_state(1, gather)
    assert draw() == drawn
    assert len(set(drawn)) == len(drawn)


def test_chance_by_a_secret() -> None:
    drawn = []
    for secret in ("a", "b", "a"):
        synchronize_seeds(secret)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_threads_and_forked_processes_draw_for_themselves() -> None:
    """They neither get what others get, nor take from what the main thread draws."""
    drawn = []
    for _ in range(2):
        synchronize_seeds("a")
        with ThreadPoolExecutor(1) as pool:
            drawn += pool.submit(unseeded).result()
        drawn += forked()
        state = unseeded()
    assert len(set(drawn)) == len(drawn)
    synchronize_seeds("a")
    assert unseeded() == state


def forked() -> list[float]:
    ours, theirs = os.pipe()
    if not os.fork():
        os.write(theirs, json.dumps(unseeded()).encode())
        os._exit(0)
    os.wait()
    os.close(theirs)
    with open(ours, "rb") as file:
        found: list[float] = json.loads(file.read())
    return found
