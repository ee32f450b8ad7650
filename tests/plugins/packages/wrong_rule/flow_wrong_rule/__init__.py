"""Ops that compute what they should, and say the wrong things about it."""
