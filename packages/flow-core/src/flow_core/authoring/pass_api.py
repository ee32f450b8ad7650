"""The API for passes: options, the rewriter, decomposition, and rewrites that need kernels."""

from flow_core.passes.base import Pass, PassContext
from flow_core.passes.options import option
from flow_core.passes.rewriting.decomposition import (
    Parts,
    Rule,
    cast_to,
    decompose,
    emit_with_sbp,
    with_sbp,
)
from flow_core.passes.rewriting.derived_values import constants_of_variables
from flow_core.passes.rewriting.rewriter import KernelRewriter, Rewriter, like_op

__all__ = [
    "KernelRewriter",
    "Parts",
    "Pass",
    "PassContext",
    "Rewriter",
    "Rule",
    "cast_to",
    "constants_of_variables",
    "decompose",
    "emit_with_sbp",
    "like_op",
    "option",
    "with_sbp",
]
