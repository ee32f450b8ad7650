"""A pass that replaces ``x * x`` by ``square(x)``."""
