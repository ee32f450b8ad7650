"""Kernels under sanitizers: a sample, and planted defects, which must be found."""

import pytest
from cuda_sanitize.defects import DEFECTS, missed
from cuda_sanitize.device import TOOLS, missing
from cuda_sanitize.runs import errors, samples

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
FEW = ("softmax", "broadcast_add", "transpose", "argmax", "gather")
PLANTED = ("missing barrier: in a loss", "tail of gather", "32-bit index")


@pytest.mark.exhaustive
@pytest.mark.parametrize("tool", TOOLS)
def test_kernels_are_clean(tool: str) -> None:
    cases = [next(samples(op, "float32")) for op in FEW]
    assert list(errors(cases, tool)) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", [d for d in DEFECTS if d.name in PLANTED], ids=lambda d: d.name)
def test_planted_defects_are_found(defect: object) -> None:
    assert not missed(defect)  # type: ignore[arg-type]


def test_defects_are_many_and_distinct() -> None:
    """``nox -s cuda-sanitize`` plants all of them."""
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 40
