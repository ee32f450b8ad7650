"""The control channel: heartbeats, failure reports, the verdict on a job, and how processes wait.

In: messages of ranks over TCP. Out: a verdict that names the rank at fault, and the order to stop.
Must not depend on collectives.
"""
