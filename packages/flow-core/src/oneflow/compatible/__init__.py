"""``oneflow.compatible``: this API under the path that later releases of OneFlow give it."""
