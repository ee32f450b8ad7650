"""The control channel: heartbeats, failure reports, verdicts on jobs, and how processes wait.

In: messages from ranks over TCP. Out: a verdict that names the rank at fault, and the stop order.
This package must not depend on collectives.
"""
