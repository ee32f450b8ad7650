"""The annotations of flow-typing as read by the core."""

# ruff: noqa: UP006, UP035 - Tuple, List and Dict are what users write

from typing import Annotated, Any, Dict, List, Tuple

import numpy as np
import pytest

import flow_typing as tp
from flow_core.annotations import (
    FetchBundle,
    FetchCallback,
    FetchDict,
    FetchLeaf,
    FetchList,
    FetchTuple,
    PlaceholderSpec,
    check_returned,
    parse_handler,
    parse_placeholder,
    parse_result,
    parse_signature,
)
from flow_core.base.dtypes import float32, int32
from flow_core.base.errors import AnnotationError
from flow_typing.plugin import SPECS

ARRAY, ARRAYS, LISTS = FetchLeaf("numpy"), FetchLeaf("list"), FetchLeaf("list_list")


class MyNumpy(tp.Numpy):
    """A user's subclass."""


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (tp.Numpy, ARRAY),
        (MyNumpy, ARRAY),
        (tp.ListNumpy, ARRAYS),
        (tp.ListListNumpy, LISTS),
        (Tuple[tp.Numpy, tp.ListNumpy], FetchTuple((ARRAY, ARRAYS))),
        (List[tp.Numpy], FetchList(ARRAY)),
        (tp.Dict[str, tp.Numpy], FetchDict(str, ARRAY)),
        (Dict[str, tp.List[tp.Numpy]], FetchDict(str, FetchList(ARRAY))),
        (tp.Bundle[tp.ListNumpy], FetchBundle(ARRAYS)),
        (tp.Callback[tp.Numpy], FetchCallback(ARRAY)),
        (tp.Callback[tp.Tuple[tp.Numpy, tp.Numpy]], FetchCallback(FetchTuple((ARRAY, ARRAY)))),
        (tp.Callback[tp.Bundle[tp.Numpy]], FetchCallback(FetchBundle(ARRAY))),
        (Tuple["tp.Numpy", "tp.Numpy"], FetchTuple((ARRAY, ARRAY))),
        ("tp.Callback[tp.Numpy]", FetchCallback(ARRAY)),
    ],
)
def test_results(annotation: Any, expected: object) -> None:
    assert parse_result(annotation, SPECS, names=globals()) == expected


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (tp.Callback, "Callback"),
        (tp.Bundle[Tuple[tp.Numpy]], "Bundle"),
        (List[tp.Callback[tp.Numpy]], "around the whole"),
        (tp.Callback[tp.Callback[tp.Numpy]], "around the whole"),
        (tp.Numpy.Placeholder((2,)), "placeholders are for parameters"),
        (float, "Numpy, ListNumpy, ListListNumpy"),
    ],
)
def test_result_errors(annotation: Any, words: str) -> None:
    with pytest.raises(AnnotationError, match=words):
        parse_result(annotation, SPECS)


def test_placeholders() -> None:
    assert tp.Numpy.Placeholder((2, 3)) == PlaceholderSpec("numpy", (2, 3), float32, 0)
    assert tp.ListNumpy.Placeholder((2, 3), int32).kind == "list"
    assert tp.ListListNumpy.Placeholder((2, 3), batch_axis=None).batch_axis is None
    with pytest.raises(AnnotationError, match=r"ListNumpy\.Placeholder"):
        tp.ListNumpy.Placeholder((2.5,))
    with pytest.raises(AnnotationError, match=r"write Annotated\[tp.Numpy, tp.shape"):
        parse_placeholder(tp.Numpy, SPECS)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Annotated[tp.Numpy, tp.shape(4, 3)], tp.Numpy.Placeholder((4, 3))),
        (Annotated[tp.Numpy, tp.shape(4, 3), int32], tp.Numpy.Placeholder((4, 3), int32)),
        (Annotated[tp.Numpy, int32, "a note", tp.shape()], tp.Numpy.Placeholder((), int32)),
        (Annotated[tp.Numpy, tp.shape(4), np.int64], tp.Numpy.Placeholder((4,), np.int64)),
        (Annotated[tp.Numpy, tp.shape(4), np.dtype("int8")], tp.Numpy.Placeholder((4,), "int8")),
        (
            Annotated[tp.Numpy, tp.shape(4, 3, batch_axis=-1)],
            tp.Numpy.Placeholder((4, 3), batch_axis=1),
        ),
        (Annotated[tp.ListNumpy, tp.shape(4)], tp.ListNumpy.Placeholder((4,))),
        (Annotated[Any, tp.ListListNumpy, tp.shape(4)], tp.ListListNumpy.Placeholder((4,))),
        ("Annotated[tp.Numpy, tp.shape(4, 3)]", tp.Numpy.Placeholder((4, 3))),
        (
            Tuple[Annotated[tp.Numpy, tp.shape(4)], tp.Numpy.Placeholder((3,))],
            (tp.Numpy.Placeholder((4,)), tp.Numpy.Placeholder((3,))),
        ),
    ],
)
def test_shapes(annotation: Any, expected: Any) -> None:
    assert parse_placeholder(annotation, SPECS, names=globals()) == expected


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[tp.Numpy, int32],
        Annotated[tp.Numpy, (4, 3)],
        Annotated[Any, tp.shape(4, 3)],
        Annotated[tp.Numpy, tp.ListNumpy, tp.shape(4, 3)],
        Annotated[tp.Numpy, tp.shape(4, 3), int32, float32],
        Annotated[tp.Numpy, tp.shape(4, 3), tp.shape(4, 3)],
        Annotated[tp.Numpy, tp.shape(4, 3), tp.Numpy.Placeholder((4, 3))],
        Annotated[Tuple[tp.Numpy, tp.Numpy], tp.shape(4, 3)],
    ],
)
def test_wrong_shapes(annotation: Any) -> None:
    with pytest.raises(AnnotationError, match="with one shape"):
        parse_placeholder(annotation, SPECS)


@pytest.mark.parametrize("sizes", [(0,), (2.5,), ((4, 3),), ("4",), (True,)])
def test_wrong_sizes(sizes: Any) -> None:
    with pytest.raises(AnnotationError, match="shape") as caught:
        tp.shape(*sizes)
    assert caught.value.at is not None
    with pytest.raises(AnnotationError, match="batch_axis 2"):
        tp.shape(4, 3, batch_axis=2)


def test_complete_job() -> None:
    def job(
        images: tp.Numpy.Placeholder((100, 1, 28, 28), dtype=float32),
        labels: tp.Numpy.Placeholder((100,), dtype=int32),
        more: Tuple[tp.ListNumpy.Placeholder((4, 2)), tp.Numpy.Placeholder((1,))],
    ) -> tp.Callback[Tuple[tp.Numpy, tp.Numpy]]: ...

    found = parse_signature(job, SPECS)
    assert [getattr(p, "shape", None) for p in found.parameters.values()] == [
        (100, 1, 28, 28),
        (100,),
        None,
    ]
    assert found.parameters["more"][0].kind == "list"
    assert found.is_async
    returned = check_returned(found.result, (1, 2), lambda v: isinstance(v, int))
    assert returned.blobs == (1, 2)


def test_callback_handler() -> None:
    def see(result: tp.ListNumpy) -> None: ...

    assert parse_handler(see, SPECS) == ARRAYS


def test_every_name_is_exported() -> None:
    assert set(tp.__all__) <= set(dir(tp))
