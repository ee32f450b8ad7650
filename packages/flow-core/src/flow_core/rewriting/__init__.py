"""Shared parts of backends' passes: queries of kernels during rewriting, data layouts."""
