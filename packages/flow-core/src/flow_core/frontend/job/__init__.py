"""Job functions and what happens to them: trace, differentiate, compile, bind, feed and call.

In: a decorated function. Out: an executable, and the results of its steps. This package must not
depend on the public API.
"""
