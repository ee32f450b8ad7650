"""Runs plans: bound launches, and actors with registers that move steps through them."""
