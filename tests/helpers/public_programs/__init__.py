"""A catalog of public programs, their synthetic data, and a runner: ``public_programs.run``."""
