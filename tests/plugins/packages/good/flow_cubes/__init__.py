"""A good plugin: an op, its kernel, a device, a command."""
