"""Checks of a job function's return value against its annotation, and the result's structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flow_core.annotations.records import (
    UNANNOTATED,
    Fetch,
    FetchBundle,
    FetchCallback,
    FetchDict,
    FetchLeaf,
    FetchList,
    FetchNone,
    FetchTuple,
    Kind,
)
from flow_core.base.errors import AnnotationError, SourceLine


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """The structure of one container in a result.

    Attributes:
        container: `tuple`, `list` or `dict`.
        items: the structure of each element.
        keys: the keys of a dict, in order.
    """

    container: type
    items: tuple[ResultLayout | FetchLeaf | FetchNone, ...]
    keys: tuple[Any, ...] = ()

    def build(self, items: list[object]) -> object:
        """Return the container with the given elements."""
        if self.container is dict:
            return dict(zip(self.keys, items, strict=True))
        return items if self.container is list else tuple(items)


Structure = ResultLayout | FetchLeaf | FetchNone


@dataclass(frozen=True, slots=True)
class Returned:
    """The return value of a job function: its structure, and its blobs from left to right."""

    structure: Structure
    blobs: tuple[Any, ...]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The annotated form of each blob."""
        return tuple(_kinds(self.structure))


def _kinds(layout: Structure) -> Iterator[Kind]:
    if isinstance(layout, FetchLeaf):
        yield layout.kind
    elif isinstance(layout, ResultLayout):
        for item in layout.items:
            yield from _kinds(item)


def _as_is(_: Kind, result: object) -> object:
    return result


def structure(
    layout: Structure, results: Sequence[object], convert: Callable[[Kind, Any], object] = _as_is
) -> Any:
    """Arrange fetched data in the structure that a job returned.

    Args:
        layout: the structure, from `check_returned`.
        results: the fetched data of each blob, in the order of `Returned.blobs`.
        convert: ``convert(kind, result)`` converts fetched data to the annotated form.

    >>> pair = ResultLayout(
    ...     tuple, (FetchLeaf("numpy"), ResultLayout(dict, (FetchLeaf("numpy"),), ("a",)))
    ... )
    >>> structure(pair, [1, 2])
    (1, {'a': 2})
    """
    remaining = iter(results)
    arranged = _arrange(layout, remaining, convert)
    if next(remaining, _as_is) is not _as_is:
        raise ValueError(f"{len(results)} results for {layout}")
    return arranged


def _arrange(
    layout: Structure, results: Iterator[object], convert: Callable[[Kind, Any], object]
) -> Any:
    if isinstance(layout, FetchLeaf):
        return convert(layout.kind, next(results))
    if isinstance(layout, FetchNone):
        return None
    return layout.build([_arrange(item, results, convert) for item in layout.items])


@dataclass(slots=True)
class _Check:
    """The visitor of a return value: the expected annotation, and the blobs found."""

    wanted: Fetch
    is_blob: Callable[[Any], bool]
    is_dynamic: Callable[[Any], bool]
    job: str
    at: SourceLine | None
    blobs: list[Any] = field(default_factory=list)

    def fail(self, path: str, found: str, allowed: str, hint: str | None = None) -> NoReturn:
        unannotated = self.wanted == UNANNOTATED
        raise AnnotationError(
            f"return value of job {self.job!r}"
            + ("" if unannotated else f", annotated as {self.wanted}"),
            at=self.at,
            found=found + (f" at result{path}" if path else ""),
            allowed=allowed,
            hint=hint,
        )

    def walk(self, fetch: Fetch, value: object, path: str) -> Structure:
        return _WALKS[type(fetch)](self, fetch, value, path)


def check_returned(
    fetch: Fetch,
    returned: object,
    is_blob: Callable[[object], bool],
    *,
    job: str = "",
    at: SourceLine | None = None,
    is_dynamic: Callable[[Any], bool] = lambda _: False,
) -> Returned:
    """Check a job's return value against its annotation.

    Args:
        fetch: the parsed annotation; `UNANNOTATED` if there is none.
        returned: the return value of the job function.
        is_blob: whether a value is a blob of the job.
        job: name of the job, for messages.
        at: the user's source line, for messages.
        is_dynamic: whether the shape of a blob may differ between steps or devices.

    Raises:
        AnnotationError: a value is not a blob, or the structure differs from the annotation.

    >>> pair = FetchTuple((FetchLeaf("numpy"), FetchLeaf("numpy")))
    >>> check_returned(pair, ("x", "y"), lambda v: isinstance(v, str)).blobs
    ('x', 'y')
    """
    wanted = fetch.result if isinstance(fetch, FetchCallback) else fetch
    check = _Check(wanted, is_blob, is_dynamic, job, at)
    if wanted == UNANNOTATED and returned is None:
        return Returned(FetchNone(), ())
    found = check.walk(wanted, returned, "")
    return Returned(found, tuple(check.blobs))


def _show(value: object, is_blob: Callable[[object], bool]) -> str:
    if is_blob(value):
        return "a blob"
    if (owner := _owner(value)) is not None:
        return f"{value!r:.80}, a blob of job {owner!r}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} of {value.dtype} and shape {value.shape}"
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"


def _owner(value: object) -> str | None:
    """Return the name of the job to which a blob belongs; None for other values."""
    owner: str | None = getattr(getattr(value, "job", None), "name", None)
    return owner


def _instead_of(value: object, form: str) -> str | None:
    """Return a hint for a result that is not a blob, None if there is none."""
    if isinstance(value, tuple | list | dict):
        return f"annotate several results as tuple[tp.{form}, ...], or as tp.Bundle[tp.{form}]"
    if _owner(value) is not None:
        return (
            "a blob belongs to the job that made it: feed this job the other's result, or call one "
            "Python function in both"
        )
    if value is None:
        return "return the blob, or annotate the job with -> None"
    if hasattr(value, "dtype") or isinstance(value, int | float):
        return "flow.constant(number, dtype, shape) makes a blob; numbers that change are fed"
    return None


def _walk_leaf(check: _Check, fetch: FetchLeaf, value: object, path: str) -> Structure:
    if not check.is_blob(value):
        check.fail(
            path,
            _show(value, check.is_blob),
            f"a blob of job {check.job!r}: a parameter, or the result of one of flow's functions",
            _instead_of(value, str(fetch)),
        )
    if fetch.kind == "numpy" and check.is_dynamic(value):
        check.fail(
            path,
            "a blob whose shape may differ from device to device or step to step",
            "blobs of fixed shape",
            "annotate it as ListNumpy or ListListNumpy",
        )
    check.blobs.append(value)
    return fetch


def _walk_none(check: _Check, fetch: FetchNone, value: object, path: str) -> Structure:
    if value is not None:
        hint = "say what it returns: -> tp.Numpy" if not path else None
        check.fail(path, _show(value, check.is_blob), "None", hint)
    return fetch


def _walk_tuple(check: _Check, fetch: FetchTuple, value: object, path: str) -> Structure:
    count = len(fetch.items)
    if type(value) is not tuple or len(value) != count:
        check.fail(path, _show(value, check.is_blob), f"a tuple of {count}")
    pairs = enumerate(zip(fetch.items, value, strict=True))
    return ResultLayout(tuple, tuple([check.walk(f, v, f"{path}[{i}]") for i, (f, v) in pairs]))


def _walk_list(check: _Check, fetch: FetchList, value: object, path: str) -> Structure:
    if type(value) is not list:
        check.fail(path, _show(value, check.is_blob), "a list")
    items = [check.walk(fetch.item, v, f"{path}[{i}]") for i, v in enumerate(value)]
    return ResultLayout(list, tuple(items))


def _walk_dict(check: _Check, fetch: FetchDict, value: object, path: str) -> Structure:
    if type(value) is not dict:
        check.fail(path, _show(value, check.is_blob), "a dict")
    wrong = [key for key in value if type(key) is not fetch.key]
    if wrong:
        check.fail(path, f"the key {wrong[0]!r}", f"keys of type {fetch.key.__name__}")
    items = [check.walk(fetch.item, v, f"{path}[{k!r}]") for k, v in value.items()]
    return ResultLayout(dict, tuple(items), tuple(value))


def _walk_bundle(check: _Check, fetch: FetchBundle, value: object, path: str) -> Structure:
    if isinstance(value, dict):
        items = [check.walk(fetch, v, f"{path}[{k!r}]") for k, v in value.items()]
        return ResultLayout(dict, tuple(items), tuple(value))
    if isinstance(value, tuple | list):
        items = [check.walk(fetch, v, f"{path}[{i}]") for i, v in enumerate(value)]
        return ResultLayout(list if isinstance(value, list) else tuple, tuple(items))
    return check.walk(fetch.leaf, value, path)


_WALKS: Mapping[type, Callable[[_Check, Any, Any, str], Structure]] = {
    FetchLeaf: _walk_leaf,
    FetchNone: _walk_none,
    FetchTuple: _walk_tuple,
    FetchList: _walk_list,
    FetchDict: _walk_dict,
    FetchBundle: _walk_bundle,
}
