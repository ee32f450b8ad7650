"""``flow plan --advise``: changes of one line, each compiled, simulated and ranked."""
