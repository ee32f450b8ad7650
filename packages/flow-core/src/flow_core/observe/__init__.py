"""Reports on compiled jobs (`text`, `diff`, `page`), and `oracle`, which verifies jobs' results.

In: a job function or a saved plan.  Out: tables, an HTML page, or a verdict.
This package must not change the state of the session.
"""
