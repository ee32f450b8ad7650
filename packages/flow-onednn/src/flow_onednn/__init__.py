"""Fast CPU kernels: oneDNN through cffi, and C compiled on the spot."""

__version__ = "0.1.0"
