"""Reports on compiled jobs (`text`, `diff`, `page`), and `oracle`, which verifies their results.

In: a job function or a saved plan.  Out: tables, an HTML page, or a verdict.
Must not change the state of the session.
"""
