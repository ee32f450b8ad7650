"""A catalogue of public programs, their synthetic data, and a runner: ``public_programs.run``."""
