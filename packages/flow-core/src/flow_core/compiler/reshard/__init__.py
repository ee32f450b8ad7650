"""Resharding (boxing): finding the cheapest steps from one distribution of a tensor to another.

In: source and target distributions of a tensor. Out: steps, their cost, and the ledger.
"""
