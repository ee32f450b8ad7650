"""Annotations of job functions, which describe the fed and fetched values and their structure.

Core implements the structure (`Tuple`, `List`, `Dict`, None) and the records below, to which all
annotations are parsed; the leaves, such as ``tp.Numpy``, are defined by `AnnotationSpec` records of
plugins.  Without such plugins, jobs can be written without annotations.

`check_returned` checks a job's return value against its annotation, and `structure` arranges the
fetched data of a step in the same form.

In: a function's annotations.  Out: its signature, from `parse_signature`. This package must not
depend on blobs or jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flow_core.annotations.parsing import annotation_name, parse_placeholder, parse_result
from flow_core.annotations.records import (
    KIND_NAMES,
    UNANNOTATED,
    FedShape,
    Fetch,
    FetchBundle,
    FetchCallback,
    FetchDict,
    FetchLeaf,
    FetchList,
    FetchNone,
    FetchOf,
    FetchTuple,
    Kind,
    Placeholders,
    PlaceholderSpec,
    fed_shape,
    placeholder,
)
from flow_core.annotations.returned import (
    ResultLayout,
    Returned,
    Structure,
    check_returned,
    structure,
)
from flow_core.annotations.signatures import JobSignature, parse_handler, parse_signature

if TYPE_CHECKING:
    from flow_core.annotations.static import Callback as Callback
    from flow_core.annotations.static import Pending as Pending

__all__ = [
    "KIND_NAMES",
    "UNANNOTATED",
    "FedShape",
    "Fetch",
    "FetchBundle",
    "FetchCallback",
    "FetchDict",
    "FetchLeaf",
    "FetchList",
    "FetchNone",
    "FetchOf",
    "FetchTuple",
    "JobSignature",
    "Kind",
    "PlaceholderSpec",
    "Placeholders",
    "ResultLayout",
    "Returned",
    "Structure",
    "annotation_name",
    "check_returned",
    "fed_shape",
    "parse_handler",
    "parse_placeholder",
    "parse_result",
    "parse_signature",
    "placeholder",
    "structure",
]
