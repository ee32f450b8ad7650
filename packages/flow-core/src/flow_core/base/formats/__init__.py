"""Formats in which reports are written."""
