"""Passes that round the operands of products and convolutions to int8.

In: a traced graph.  Out: the graph with the ops that round, before differentiation.  This package
must not depend on compilation or tracing.
"""
