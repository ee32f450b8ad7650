"""The simulator of plans, and the probe that measures what it needs."""
