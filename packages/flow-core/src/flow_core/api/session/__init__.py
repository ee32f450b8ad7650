"""Jobs, scopes, settings, checkpoints and placement of the session.

In: calls by user programs.  Out: jobs, settings and variables of the session.  This package must
not depend on `nn` or `optim`.
"""
