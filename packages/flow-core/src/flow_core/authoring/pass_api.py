"""The API for passes: options, the rewriter, decomposition, and rewrites that need kernels."""

from flow_core.ir.rewriter import Rewriter, like
from flow_core.passes.base import Pass, PassContext
from flow_core.passes.options import option
from flow_core.passes.rewrite import Parts, Rule, as_type, asked, constrain, take_apart
from flow_core.rewriting.derived_values import constants_of_variables
from flow_core.rewriting.kernel_rewriter import KernelRewriter

__all__ = [
    "KernelRewriter",
    "Parts",
    "Pass",
    "PassContext",
    "Rewriter",
    "Rule",
    "as_type",
    "asked",
    "constants_of_variables",
    "constrain",
    "like",
    "option",
    "take_apart",
]
