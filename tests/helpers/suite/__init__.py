"""Plugins of pytest that the root conftest loads, and `work`, which counts what code does."""
