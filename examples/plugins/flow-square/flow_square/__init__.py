"""A pass that replaces ``x * x`` with ``square(x)``."""
