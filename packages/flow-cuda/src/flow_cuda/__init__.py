"""The CUDA device: CuPy driver and kernels."""

__version__ = "0.1.0"
