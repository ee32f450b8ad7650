"""The API for data-layout passes: the conversion to NHWC, and its rules for core ops."""

from flow_core.passes.rewriting import layout_rules
from flow_core.passes.rewriting.layouts import (
    FIRST,
    LAST,
    TO_FIRST,
    TO_LAST,
    Layouts,
    LayoutTable,
    Rule,
    channels_last_shape,
    propagate,
    to_channels_last,
    wide_type,
)

__all__ = [
    "FIRST",
    "LAST",
    "TO_FIRST",
    "TO_LAST",
    "LayoutTable",
    "Layouts",
    "Rule",
    "channels_last_shape",
    "layout_rules",
    "propagate",
    "to_channels_last",
    "wide_type",
]
