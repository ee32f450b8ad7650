"""Sharding rules of ops as data, and their proof by brute force."""

from flow_rules.check import Finding, Report, check
from flow_rules.errors import RulesError
from flow_rules.evaluators import Evaluator
from flow_rules.files import OpRules, RuleCase, RulesFile, read_rules
from flow_rules.layouts import Broadcast, Layout, Partial, Place, Rule, Split, parse_layout

__version__ = "0.1.0"

__all__ = [
    "Broadcast", "Evaluator", "Finding", "Layout", "OpRules", "Partial", "Place", "Report", "Rule",
    "RuleCase", "RulesError", "RulesFile", "Split", "check", "parse_layout", "read_rules",
]  # fmt: skip
