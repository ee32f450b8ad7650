"""Conformance kits for plugin authors: subclass to test."""
