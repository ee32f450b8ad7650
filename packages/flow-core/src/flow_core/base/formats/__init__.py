"""Formats in which reports are written, and how files and URLs are named and opened."""
