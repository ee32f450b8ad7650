"""A command that lists the variables of a checkpoint."""
