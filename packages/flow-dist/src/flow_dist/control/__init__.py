"""The control channel: heartbeats, errors, and the order to stop.

In: messages of ranks. Out: a verdict that names the rank at fault.
Must not depend on collectives.
"""
