"""Exchanges as plain data, and algorithms without a transport, for all communicators (comms).

In: boxing tasks of a plan.  Out: exchanges, and gather plans, which state which boxes are copied to
or combined in each box of an output.  This package must not depend on devices, plugins or the
compiler.
"""
