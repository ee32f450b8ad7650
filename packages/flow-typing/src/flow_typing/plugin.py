"""Plugin entry point: the specs of the annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_origin

import pluggy

from flow_core.annotations import Fetch, FetchBundle, FetchCallback, FetchLeaf, FetchOf, Kind
from flow_core.authoring.specs import AnnotationSpec
from flow_core.base.config import Settings
from flow_typing.forms import Bundle, Callback, ListListNumpy, ListNumpy, Numpy

FLOW_PLUGIN_API = "1.0"
hookimpl = pluggy.HookimplMarker("flow")


def _leaf(form: type, kind: Kind) -> AnnotationSpec:
    """Return the spec of a class that, like its subclasses, annotates one value."""

    def matches(annotation: Any) -> bool:
        return isinstance(annotation, type) and issubclass(annotation, form)

    return AnnotationSpec(form.__name__, matches, fetch=lambda _: FetchLeaf(kind))


def _generic(form: Any, name: str, fetch: Callable[[FetchOf], Fetch]) -> AnnotationSpec:
    """Return the spec of ``form[T]``."""

    def matches(annotation: Any) -> bool:
        return get_origin(annotation) is form

    return AnnotationSpec(name, matches, fetch=lambda a: fetch(FetchOf(get_args(a)[0])))


SPECS: tuple[AnnotationSpec, ...] = (
    _leaf(Numpy, "numpy"),
    _leaf(ListNumpy, "list"),
    _leaf(ListListNumpy, "list_list"),
    _generic(Callback, "Callback[T]", FetchCallback),
    _generic(Bundle, "Bundle[T]", FetchBundle),
)


@hookimpl
def flow_register_annotations(config: Settings) -> tuple[AnnotationSpec, ...]:
    """Return the specs of the annotations of `flow_typing`."""
    return SPECS
