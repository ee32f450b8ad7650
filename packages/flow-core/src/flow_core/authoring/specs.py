"""The API for plugin hooks: the records that hooks return, ops, graphs, SBP and placements.

This module is fast to import: it imports no kernels, passes or hardware libraries.
"""

from flow_core.ir.graph import (
    NO_ATTRS as NO_ATTRS,
    Attrs as Attrs,
    AttrValue as AttrValue,
    Graph as Graph,
    GraphBuilder as GraphBuilder,
    Op as Op,
    TensorType as TensorType,
    Value as Value,
    tensor_type as tensor_type,
)
from flow_core.plugins.emission import emit as emit
from flow_core.plugins.exporters import (
    ExportedJob as ExportedJob,
    ExporterSpec as ExporterSpec,
    ImportTools as ImportTools,
)
from flow_core.plugins.hookspecs import hookimpl as hookimpl
from flow_core.plugins.specs import (
    ANY_DEVICE_TYPE as ANY_DEVICE_TYPE,
    REQUIRED as REQUIRED,
    AnnotationSpec as AnnotationSpec,
    Available as Available,
    BindContext as BindContext,
    BoxingSpec as BoxingSpec,
    CommSpec as CommSpec,
    DecoderSpec as DecoderSpec,
    DeviceSpec as DeviceSpec,
    FormatSpec as FormatSpec,
    InferContext as InferContext,
    KernelQuery as KernelQuery,
    KernelSpec as KernelSpec,
    Lazy as Lazy,
    LocalContext as LocalContext,
    OpSpec as OpSpec,
    Part as Part,
    PassSpec as PassSpec,
    ReaderSpec as ReaderSpec,
    Sample as Sample,
    SbpContext as SbpContext,
    Unavailable as Unavailable,
    load as load,
    local_attrs as local_attrs,
    local_shape as local_shape,
)
from flow_core.sharding.sbp import (
    EXTREMES as EXTREMES,
    B as B,
    Broadcast as Broadcast,
    NdSbp as NdSbp,
    P as P,
    Partial as Partial,
    Region as Region,
    S as S,
    Sbp as Sbp,
    Signature as Signature,
    Signatures as Signatures,
    Split as Split,
    coordinates as coordinates,
    format_nd_sbp as format_nd_sbp,
    gradient_dual as gradient_dual,
    intersect as intersect,
    local_region as local_region,
    parse_nd_sbp as parse_nd_sbp,
    parse_sbp as parse_sbp,
    region_shape as region_shape,
    signature as signature,
)
from flow_core.sharding.topology import (
    Device as Device,
    Devices as Devices,
    Placement as Placement,
    numbered as numbered,
)
