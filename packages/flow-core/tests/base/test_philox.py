"""The contract of random numbers, which kernels of all devices implement."""

from __future__ import annotations

import numpy as np

from flow_core.base.philox import uniform

MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
MASK = 2**64 - 1


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    for _ in range(10):
        a, b = MULTIPLIERS[0] * counter[0], MULTIPLIERS[1] * counter[2]
        counter = (
            (b >> 64) ^ counter[1] ^ key[0],
            b & MASK,
            (a >> 64) ^ counter[3] ^ key[1],
            a & MASK,
        )
        key = (key[0] + WEYL[0]) & MASK, (key[1] + WEYL[1]) & MASK
    return counter


def element(i: int, seed: int, step: int, draw: int = 0) -> float:
    words = philox((i // 8 + 1, step, draw, 0), (seed, 0))
    word = words[i % 8 // 2] >> 32 * (i % 2) & 0xFFFFFFFF
    return (word >> 8) * 2.0**-24


def test_element_i_is_a_function_of_seed_step_and_i() -> None:
    expected = [element(i, 7, 5) for i in range(100)]
    np.testing.assert_array_equal(uniform(7, (100,), step=5), np.array(expected, np.float32))
