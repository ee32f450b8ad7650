"""Exchanges as plain data, and communication algorithms without a transport, for all comms.

In: boxing tasks of a plan.  Out: exchanges, and gather plans: which boxes are copied or combined
into which.  Must not depend on devices, plugins or the compiler.
"""
