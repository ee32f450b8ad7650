"""CUDA C++ that is written by hand, and what makes it C++ of the host."""
