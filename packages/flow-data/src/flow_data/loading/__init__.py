"""Pipelines that make batches ahead of the steps that need them."""
