"""Ops that move tensors between devices and views."""
