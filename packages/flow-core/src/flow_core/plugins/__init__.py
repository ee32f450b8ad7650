"""The plugin system: specs, hook specs, registry and host."""
