"""The API for data-layout passes: the conversion to NHWC, and its rules for core ops."""

from flow_core.passes.rewriting import layout_rules as layout_rules
from flow_core.passes.rewriting.layouts import (
    FIRST as FIRST,
    LAST as LAST,
    TO_FIRST as TO_FIRST,
    TO_LAST as TO_LAST,
    Layouts as Layouts,
    LayoutTable as LayoutTable,
    Rule as Rule,
    channels_last_shape as channels_last_shape,
    propagate as propagate,
    to_channels_last as to_channels_last,
    wide_type as wide_type,
)
