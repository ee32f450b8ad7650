"""The plugin system: specs, hook specs, registry and host.

In: modules with hooks, of flow-core and installed.  Out: a frozen `Registry` of their records.
Must not depend on the frontend, the compiler or the runtime.
"""
