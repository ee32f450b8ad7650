"""The core of flow: graph IR, SBP algebra, compiler, runtime and the numpy kernels."""

__version__ = "0.1.0"
