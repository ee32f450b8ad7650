"""The kernel kit kills a sample of the mutants of the numpy kernels."""

from __future__ import annotations

from itertools import islice

import pytest
from kernel_mutation.mutants import (
    KINDS,
    Kit,
    all_mutants,
    family,
    killed_by,
    mutants,
    refused_originals,
)

OPS = ("adam_update", "broadcast_sub", "cast", "matmul", "normalization", "sgd_update", "softmax")


pytestmark = pytest.mark.arithmetic


@pytest.mark.exhaustive
def test_original_kernels_survive() -> None:
    assert list(islice(refused_originals(), 1)) == []


@pytest.mark.slow
def test_mutants_of_some_ops_are_killed() -> None:
    kit = Kit()
    made = [mutant for op in OPS for mutant in mutants(kit, op)]
    assert {family(mutant) for mutant in made} > {*KINDS}
    assert not [str(mutant) for mutant in made if not killed_by(mutant)]


@pytest.mark.slow
def test_some_mutants_of_each_op_are_killed() -> None:
    made = list(islice(all_mutants(), 0, None, 41))
    assert len(made) > 60
    assert not [str(mutant) for mutant in made if not killed_by(mutant)]
