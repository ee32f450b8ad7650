"""Mutated inputs for every format that is read: `python -m fuzzing --help`."""
