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

from flow_core.annotations.parsing import annotation_name as annotation_name
from flow_core.annotations.parsing import parse_placeholder as parse_placeholder
from flow_core.annotations.parsing import parse_result as parse_result
from flow_core.annotations.records import KIND_NAMES as KIND_NAMES
from flow_core.annotations.records import UNANNOTATED as UNANNOTATED
from flow_core.annotations.records import FedShape as FedShape
from flow_core.annotations.records import Fetch as Fetch
from flow_core.annotations.records import FetchBundle as FetchBundle
from flow_core.annotations.records import FetchCallback as FetchCallback
from flow_core.annotations.records import FetchDict as FetchDict
from flow_core.annotations.records import FetchLeaf as FetchLeaf
from flow_core.annotations.records import FetchList as FetchList
from flow_core.annotations.records import FetchNone as FetchNone
from flow_core.annotations.records import FetchOf as FetchOf
from flow_core.annotations.records import FetchTuple as FetchTuple
from flow_core.annotations.records import Kind as Kind
from flow_core.annotations.records import Placeholders as Placeholders
from flow_core.annotations.records import PlaceholderSpec as PlaceholderSpec
from flow_core.annotations.records import fed_shape as fed_shape
from flow_core.annotations.records import placeholder as placeholder
from flow_core.annotations.returned import ResultLayout as ResultLayout
from flow_core.annotations.returned import Returned as Returned
from flow_core.annotations.returned import Structure as Structure
from flow_core.annotations.returned import check_returned as check_returned
from flow_core.annotations.returned import structure as structure
from flow_core.annotations.signatures import JobSignature as JobSignature
from flow_core.annotations.signatures import parse_handler as parse_handler
from flow_core.annotations.signatures import parse_signature as parse_signature

if TYPE_CHECKING:
    from flow_core.annotations.static import Callback as Callback
    from flow_core.annotations.static import Pending as Pending
