"""The sharding rules that PyTorch's DTensor declares, checked by the prover from outside.

Requires ``flow-rules[torch]``.  DTensor's registry of rules has no public interface: these modules
read private names of the PyTorch that is installed, and were written for PyTorch 2.13.
"""
