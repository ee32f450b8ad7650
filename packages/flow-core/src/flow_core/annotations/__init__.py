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

from flow_core.annotations.parsing import (
    annotation_name as annotation_name,
    parse_placeholder as parse_placeholder,
    parse_result as parse_result,
)
from flow_core.annotations.records import (
    KIND_NAMES as KIND_NAMES,
    UNANNOTATED as UNANNOTATED,
    FedShape as FedShape,
    Fetch as Fetch,
    FetchBundle as FetchBundle,
    FetchCallback as FetchCallback,
    FetchDict as FetchDict,
    FetchLeaf as FetchLeaf,
    FetchList as FetchList,
    FetchNone as FetchNone,
    FetchOf as FetchOf,
    FetchTuple as FetchTuple,
    Kind as Kind,
    Placeholders as Placeholders,
    PlaceholderSpec as PlaceholderSpec,
    fed_shape as fed_shape,
    placeholder as placeholder,
)
from flow_core.annotations.returned import (
    ResultLayout as ResultLayout,
    Returned as Returned,
    Structure as Structure,
    check_returned as check_returned,
    structure as structure,
)
from flow_core.annotations.signatures import (
    JobSignature as JobSignature,
    parse_handler as parse_handler,
    parse_signature as parse_signature,
)

if TYPE_CHECKING:
    from flow_core.annotations.static import Callback as Callback, Pending as Pending
