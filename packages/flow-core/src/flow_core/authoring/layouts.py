"""The API for data-layout passes: the conversion to NHWC, and its rules for core ops."""

from flow_core.passes.rewriting import layout_rules as layout_rules
from flow_core.passes.rewriting.layouts import FIRST as FIRST
from flow_core.passes.rewriting.layouts import LAST as LAST
from flow_core.passes.rewriting.layouts import TO_FIRST as TO_FIRST
from flow_core.passes.rewriting.layouts import TO_LAST as TO_LAST
from flow_core.passes.rewriting.layouts import Layouts as Layouts
from flow_core.passes.rewriting.layouts import LayoutTable as LayoutTable
from flow_core.passes.rewriting.layouts import Rule as Rule
from flow_core.passes.rewriting.layouts import channels_last_shape as channels_last_shape
from flow_core.passes.rewriting.layouts import propagate as propagate
from flow_core.passes.rewriting.layouts import to_channels_last as to_channels_last
from flow_core.passes.rewriting.layouts import wide_type as wide_type
