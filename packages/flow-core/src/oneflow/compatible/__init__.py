"""``oneflow.compatible``: this API under its path in later releases of OneFlow."""
