"""Outcomes of trials of primitives, kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flow_core.base.disk_cache import CacheWarning
from flow_onednn import kept_trials, primitives, threads
from flow_onednn.binding import BINARY_ADD, RELU
from flow_onednn.library import library
from flow_onednn.primitives import NO_POST_OPS, PostOps, Primitive, any_layout, create, plain

pytestmark = pytest.mark.usefixtures("onednn")

ROWS = 600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flow-onednn" / "trials"


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threads.limited(2):
        yield


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of threads that trials have found."""
    found = []
    usual = primitives._equal_threads

    def counted(*arguments: object) -> int:
        found.append(usual(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(primitives, "_equal_threads", counted)
    return found


def product(rows: int = ROWS, inner: int = 256, post: PostOps = NO_POST_OPS) -> Primitive:
    """Create a product of matrices."""
    null = library().ffi.NULL
    ends = (plain((rows, inner), "float32"), any_layout((inner, 256), "float32"))
    made = create("matmul", *ends, null, plain((rows, 256), "float32"), post=post)
    assert made is not None
    return made


def sum_with(*shape: int) -> PostOps:
    """Return the post-op that adds an array of a shape."""
    return PostOps(operands=((BINARY_ADD, plain(shape, "float32")),))


@pytest.mark.usefixtures("two_threads")
def test_a_later_start_makes_no_trial(folder: Path, trials: list[int]) -> None:
    first = product()
    assert len(trials) == 1
    assert product().threads == first.threads == (trials[0] if trials[0] < 2 else 0)
    assert len(trials) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("two_threads")
def test_small_primitives_are_tried_in_each_start(folder: Path, trials: list[int]) -> None:
    product(rows=8)
    product(rows=8)
    assert len(trials) == 2
    assert not folder.exists()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    "other",
    [
        lambda: product(rows=ROWS + 1),
        lambda: product(inner=257),
        lambda: product(post=PostOps(activation=RELU)),
        lambda: product(post=PostOps(accumulate=True)),
        lambda: product(post=sum_with(1, 256)),
        lambda: product(post=sum_with(ROWS, 256)),
    ],
    ids=["rows", "inner", "activation", "accumulate", "row", "matrix"],
)
def test_other_primitives_have_trials_of_their_own(
    folder: Path, trials: list[int], other: Callable[[], Primitive]
) -> None:
    product()
    other()
    assert len(trials) == 2
    assert len(list(folder.iterdir())) == 2


@pytest.mark.usefixtures("folder")
def test_texts_have_no_addresses() -> None:
    made = product(post=sum_with(1, 256))
    text = primitives._texts[made.desc]
    assert "cdata" not in text
    assert "0x" not in text
    assert text == primitives._texts[product(post=sum_with(1, 256)).desc]
    weights = made.md("weights")
    assert primitives._texts[weights] == f"weights of ({text})"


def test_descriptors_of_a_primitive_are_made_once() -> None:
    """One that is dropped does not take the text of the others with it."""
    made = product()
    made.md("weights")
    assert made.md("weights") is made.md("weights")
    assert create("reorder", plain((256, 256), "float32"), made.md("weights")) is not None


@pytest.mark.usefixtures("two_threads", "folder")
def test_products_of_unknown_descriptors_are_tried(trials: list[int]) -> None:
    known = product().md("weights")
    del primitives._texts[known]
    null = library().ffi.NULL
    ends = plain((ROWS, 256), "float32"), known, null, plain((ROWS, 256), "float32")
    assert [create("matmul", *ends) is not None for _ in range(2)] == [True, True]
    assert len(trials) == 3


@pytest.mark.parametrize("content", [b"3", b"0", b"-1", b"two", b""])
def test_impossible_outcomes_are_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    size = kept_trials.SMALLEST
    with monkeypatch.context() as patch:
        patch.setattr(kept_trials, "str", lambda _: content.decode(), raising=False)
        kept_trials.threads_of("a", size, 2, lambda: 1)
    with pytest.warns(CacheWarning, match="will be replaced"):
        assert kept_trials.threads_of("a", size, 2, lambda: 2) == 2
    assert kept_trials.threads_of("a", size, 2, lambda: 1) == 2
    assert len(list(folder.iterdir())) == 1
