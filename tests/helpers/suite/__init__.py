"""Plugins of pytest that the root conftest loads."""
