"""Job functions and their stages: trace, differentiate, compile, bind, feed and call.

In: a decorated function. Out: an executable, and the results of its steps.
Must not depend on the public API.
"""
