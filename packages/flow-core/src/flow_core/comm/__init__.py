"""Communication algorithms without a transport, for all comms.

In: exchanges.  Out: gather plans: which boxes are copied or combined into which.
Must not depend on devices, plugins, arrays' libraries or the compiler.
"""
