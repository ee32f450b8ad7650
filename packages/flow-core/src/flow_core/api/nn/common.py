"""Argument checks of ``flow.nn``."""

from __future__ import annotations

from flow_core.api.arguments import checker

check = checker("flow.nn.")
