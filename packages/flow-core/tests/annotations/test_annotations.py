"""The core's part of annotations: structures, placeholders, signatures, return values."""

# ruff: noqa: UP006, UP035 - Tuple, List and Dict are what users write

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Annotated, Any, Dict, List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.annotations import (
    UNANNOTATED,
    FetchBundle,
    FetchCallback,
    FetchDict,
    FetchLeaf,
    FetchList,
    FetchNone,
    FetchOf,
    FetchTuple,
    PlaceholderSpec,
    check_returned,
    parse_handler,
    parse_placeholder,
    parse_result,
    parse_signature,
    placeholder,
    structure,
)
from flow_core.base.dtypes import float32, int32
from flow_core.base.errors import AnnotationError, FeedError
from flow_core.plugins.specs import AnnotationSpec

LEAF = FetchLeaf("numpy")


class Frame:
    """A third-party leaf."""


class Later:
    """A third-party callback."""

    def __class_getitem__(cls, item: object) -> typing.Any:
        return ("later", item)


SPECS = (
    AnnotationSpec("Frame", lambda a: a is Frame, fetch=lambda _: LEAF),
    AnnotationSpec(
        "Later[T]",
        lambda a: isinstance(a, tuple) and a[:1] == ("later",),
        fetch=lambda a: FetchCallback(FetchOf(a[1])),
    ),
)


class Blob:
    """A substitute for BlobDef."""


def is_blob(value: object) -> bool:
    return isinstance(value, Blob)


# -------------------------------------------------------------------------- string annotations


@pytest.mark.parametrize(
    "text",
    [
        "0/0", "int()()", "[][0]", "{}[0]", "(", "a\0b", "\ud800", "'" * 3, "List[" * 300,
        "(" * 3000, "again", "deep", "int.x", "Frame[int]", "unknown", "exec('raise ValueError')",
    ],
)  # fmt: skip
@pytest.mark.parametrize("parse", [parse_placeholder, parse_result])
def test_any_error_in_a_string_annotation_names_the_annotation(text: str, parse: Any) -> None:
    names = {"List": list, "again": "again", "deep": "deeper", "deeper": "deep", "Frame": Frame}
    with pytest.raises(AnnotationError) as caught:
        parse(text, SPECS, job="train", names=names)
    assert "train" in str(caught.value)
    str(caught.value).encode()


def test_flow_errors_in_annotations_are_not_wrapped() -> None:
    def refuse() -> None:
        raise FeedError("making a placeholder")

    with pytest.raises(FeedError, match="making a placeholder"):
        parse_result("refuse()", SPECS, names={"refuse": refuse})


# ---------------------------------------------------------------------------- placeholders


def test_placeholder_arguments_are_normalized() -> None:
    spec = placeholder("list", [np.int64(4), 3], "float", -1)
    assert spec == PlaceholderSpec("list", (4, 3), float32, 1)
    assert placeholder("numpy", ()).batch_axis is None
    assert placeholder("numpy", (3,), batch_axis=None).batch_axis is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shape": 3}, "shape 3"),
        ({"shape": (0, 2)}, "shape (0, 2)"),
        ({"shape": (-1, 2)}, "positive"),
        ({"shape": (2.0,)}, "shape (2.0,)"),
        ({"shape": (True,)}, "positive"),
        ({"shape": "23"}, "shape '23'"),
        ({"shape": (2,), "dtype": "flot"}, "'flot'"),
        ({"shape": (2,), "batch_axis": 1}, "batch_axis 1"),
    ],
)
def test_placeholder_errors(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        placeholder("numpy", **arguments)
    assert words in str(caught.value)
    assert "test_annotations.py" in str(caught.value.at)


# --------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (None, FetchNone()),
        (type(None), FetchNone()),
        (Frame, LEAF),
        ("Frame", LEAF),
        (Annotated[Frame, "a note"], LEAF),
        (Tuple[Frame, Frame], FetchTuple((LEAF, LEAF))),
        (tuple[Frame], FetchTuple((LEAF,))),
        (List[Frame], FetchList(LEAF)),
        (list["Frame"], FetchList(LEAF)),
        (List["Frame"], FetchList(LEAF)),
        (Dict[str, Frame], FetchDict(str, LEAF)),
        (
            Dict[str, List[Tuple[Frame, Frame]]],
            FetchDict(str, FetchList(FetchTuple((LEAF, LEAF)))),
        ),
        (Later[Frame], FetchCallback(LEAF)),
        (Later[None], FetchCallback(FetchNone())),
        (Later[Tuple[Frame, Frame]], FetchCallback(FetchTuple((LEAF, LEAF)))),
    ],
)
def test_results(annotation: Any, expected: object) -> None:
    assert parse_result(annotation, SPECS, names=globals()) == expected


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "int"),
        (list, "list"),
        (tuple, "Tuple"),
        (Tuple[Frame, ...], "..."),
        (Dict[str, int], "int"),
        (Tuple[Frame, None], "None inside"),
        ("List[Later[Frame]]", "inside of another"),
        (Frame | None, "Frame | None"),
        ("Fram", "Fram"),
        ("1 +", "1 +"),
        (placeholder("numpy", (2,)), "-> tp.Numpy"),
        (np.ndarray, "-> tp.Numpy"),
        (typing.Any, "Any"),
    ],
)
def test_result_errors(annotation: Any, words: str) -> None:
    names = {**globals(), "Later": _LaterAlias}
    with pytest.raises(AnnotationError) as caught:
        parse_result(annotation, (*SPECS, _LATER_ALIAS), job="train", names=names)
    assert words in str(caught.value)
    assert "'train'" in str(caught.value)


class _LaterAlias(typing.Generic[typing.TypeVar("T")]):
    pass


_LATER_ALIAS = AnnotationSpec(
    "LaterAlias",
    lambda a: typing.get_origin(a) is _LaterAlias,
    fetch=lambda a: FetchCallback(FetchOf(typing.get_args(a)[0])),
)


def test_error_without_specs_names_the_annotation_package() -> None:
    with pytest.raises(AnnotationError, match=r"uv pip install .*packages/flow-typing"):
        parse_result(Frame, ())
    with pytest.raises(AnnotationError, match=r"uv pip install .*packages/flow-typing"):
        parse_placeholder(Frame, ())


def test_ambiguous_annotation_is_an_error() -> None:
    twice = (SPECS[0], AnnotationSpec("Other", lambda a: a is Frame, fetch=lambda _: LEAF))
    with pytest.raises(AnnotationError, match="Frame, Other"):
        parse_result(Frame, twice)


def test_bundle_accepts_leaves_only() -> None:
    bad = AnnotationSpec("Bad", lambda a: a is Blob, fetch=lambda _: FetchBundle(FetchList(LEAF)))
    with pytest.raises(AnnotationError, match=r"Bundle\[List\[Numpy\]\]"):
        parse_result(Blob, (bad,))


# ----------------------------------------------------------------------------- parameters


def test_parameters() -> None:
    one, two = placeholder("numpy", (2,)), placeholder("list", (3,))
    assert parse_placeholder(one, ()) is one
    assert parse_placeholder(Annotated[Any, "note", two], ()) is two
    assert parse_placeholder(Tuple[one, Tuple[two, one]], ()) == (one, (two, one))  # type: ignore[valid-type]
    custom = AnnotationSpec("Frame", lambda a: a is Frame, placeholder=lambda _: one)
    assert parse_placeholder(Frame, (custom,)) is one


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "Placeholder"),
        (Frame, r"write Annotated\[tp.Frame, tp.shape"),
        (Annotated[Any, 3], "with one shape"),
        (tuple, "Placeholder"),
        (List[Frame], "Placeholder"),
    ],
)
def test_parameter_errors(annotation: Any, words: str) -> None:
    with pytest.raises(AnnotationError, match=words):
        parse_placeholder(annotation, SPECS, parameter="x", job="train")


# ----------------------------------------------------------------------------- signatures


def test_string_annotations_resolve_names_of_enclosing_functions() -> None:
    """Because of `from __future__ import annotations`, all annotations here are strings."""
    hidden = 5

    def make(size: int) -> Any:
        def job(
            x: placeholder("numpy", (size, hidden), int32),  # type: ignore[valid-type]
        ) -> Tuple[Frame, Frame]: ...

        return parse_signature(job, SPECS)

    found = make(7)
    assert found.parameters == {"x": PlaceholderSpec("numpy", (7, 5), int32)}
    assert found.result == FetchTuple((LEAF, LEAF))
    assert found.at.line == make.__code__.co_firstlineno + 1
    assert not found.is_async


def test_innermost_name_wins() -> None:
    size = 1

    def make() -> Any:
        size = 2

        def job(x: placeholder("numpy", (size,))) -> None: ...  # type: ignore[valid-type]

        return parse_signature(job, ())

    assert size == 1
    assert make().parameters["x"].shape == (2,)


def test_unannotated_jobs_use_placeholders_as_defaults() -> None:
    one = placeholder("numpy", (2,))

    def job(x=one, y=(one, {"k": one})):  # type: ignore[no-untyped-def]
        ...

    found = parse_signature(job, ())
    assert found.parameters == {"x": one, "y": (one, {"k": one})}
    assert found.result == UNANNOTATED


def test_no_parameters() -> None:
    assert parse_signature(lambda: None, (), job="empty").parameters == {}


PH = placeholder("numpy", (2,))


def _bare(x): ...  # type: ignore[no-untyped-def]
def _star(*x: 1): ...  # type: ignore[no-untyped-def, valid-type]
def _mixed(x: PH, y=PH): ...  # type: ignore[no-untyped-def, valid-type]
def _default(x: PH = 3): ...  # type: ignore[no-untyped-def, valid-type]
def _wrong_default(x=3): ...  # type: ignore[no-untyped-def]
def _unknown_name(x: nothing): ...  # type: ignore[no-untyped-def, name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_bare, "no annotation"),
        (_star, r"\*x"),
        (_mixed, "no annotation of y"),
        (_default, "a default value 3"),
        (_wrong_default, "default 3"),
        (_unknown_name, "name 'nothing' is not defined"),
    ],
)
def test_signature_errors(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(AnnotationError, match=words) as caught:
        parse_signature(function, SPECS)
    assert caught.value.at.line == function.__code__.co_firstlineno


def test_handlers() -> None:
    def framed(x: Frame) -> None: ...
    def pair(x: Tuple[Frame, Frame]) -> None: ...
    def two(x: Frame, y: Frame) -> None: ...

    assert parse_handler(framed, SPECS) == LEAF
    with pytest.raises(AnnotationError, match="Tuple"):
        parse_handler(pair, SPECS)
    with pytest.raises(AnnotationError, match="2 parameters"):
        parse_handler(two, SPECS)


# -------------------------------------------------------------------------- return values


def test_structure_follows_the_return_value() -> None:
    a, b, c = Blob(), Blob(), Blob()
    fetch = FetchTuple((FetchList(LEAF), FetchDict(str, FetchLeaf("list"))))
    returned = check_returned(fetch, ([a, b], {"k": c}), is_blob)
    assert returned.blobs == (a, b, c)
    assert returned.kinds == ("numpy", "numpy", "list")
    assert structure(returned.structure, [1, 2, 3]) == ([1, 2], {"k": 3})
    kinds = structure(returned.structure, [1, 2, 3], lambda kind, value: (kind, value))
    assert kinds[1] == {"k": ("list", 3)}


def test_callbacks_and_none() -> None:
    blob = Blob()
    assert check_returned(FetchCallback(LEAF), blob, is_blob).blobs == (blob,)
    assert structure(check_returned(FetchNone(), None, is_blob).structure, []) is None
    assert check_returned(UNANNOTATED, None, is_blob).structure == FetchNone()


@pytest.mark.parametrize(
    ("fetch", "value", "words"),
    [
        (LEAF, 3, "int 3"),
        (LEAF, None, "None"),
        (LEAF, (Blob(),), "a tuple of 1"),
        (FetchNone(), Blob(), "a blob"),
        (FetchTuple((LEAF, LEAF)), (Blob(),), "a tuple of 1"),
        (FetchTuple((LEAF, LEAF)), [Blob(), Blob()], "a list of 2"),
        (FetchTuple((LEAF, LEAF)), (Blob(), 1.5), r"float 1.5 at result\[1\]"),
        (FetchList(LEAF), (Blob(),), "a tuple of 1"),
        (FetchDict(str, LEAF), {3: Blob()}, "the key 3"),
        (FetchDict(str, LEAF), {"a": [Blob()]}, r"a list of 1 at result\['a'\]"),
        (FetchDict(str, LEAF), Blob(), "a blob"),
        (FetchBundle(LEAF), [{"a": 1}], r"int 1 at result\[0\]\['a'\]"),
        (UNANNOTATED, 3, "int 3"),
    ],
)
def test_return_value_errors(fetch: Any, value: Any, words: str) -> None:
    with pytest.raises(AnnotationError, match=words):
        check_returned(fetch, value, is_blob, job="train")


def test_dynamic_blobs_cannot_be_returned_as_one_array() -> None:
    with pytest.raises(AnnotationError, match="ListNumpy"):
        check_returned(LEAF, Blob(), is_blob, is_dynamic=is_blob)
    check_returned(FetchLeaf("list"), Blob(), is_blob, is_dynamic=is_blob)


def test_wrong_number_of_results() -> None:
    with pytest.raises(ValueError, match="2 results"):
        structure(LEAF, [1, 2])


NESTED = st.recursive(
    st.builds(Blob),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(NESTED)
def test_bundle_structure_is_preserved(value: Any) -> None:
    returned = check_returned(FetchBundle(LEAF), value, is_blob)
    assert structure(returned.structure, returned.blobs) == value
