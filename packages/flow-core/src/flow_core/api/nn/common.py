"""Argument checks that the modules of ``flow.nn`` share."""

from __future__ import annotations

from flow_core.api.arguments import checker

check = checker("flow.nn.")
