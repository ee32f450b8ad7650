"""Mutants of the numpy kernels, which the kernel kit must kill: ``nox -s kernel-mutants``."""
