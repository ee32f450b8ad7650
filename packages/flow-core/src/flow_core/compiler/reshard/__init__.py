"""Resharding (boxing): the cheapest sequence of steps from one distribution to another.

In: source and target distributions of a tensor. Out: steps, their cost, and the ledger.
Must not depend on scheduling or memory planning.
"""
