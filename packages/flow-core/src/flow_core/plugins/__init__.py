"""The plugin system: specs, hook specs, registry and host.

In: modules with hooks, from flow-core and from installed plugins.  Out: a frozen `Registry` of
their records. This package must not depend on the frontend, the compiler or the runtime.
"""
