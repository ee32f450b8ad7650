"""Execution of plans: bound launches, and the actors and registers of the step pipeline."""
