"""A plugin that does not say for which host it is."""


def flow_register_ops():
    raise SystemExit("hooks of a plugin without a version must not be called")
