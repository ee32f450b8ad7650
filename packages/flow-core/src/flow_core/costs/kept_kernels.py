"""The measured kernels of this machine, kept on disk for later starts.

An entry of the cache has the kernels of one environment: the versions of plugins and libraries,
and the processor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from flow_core.base.disk_cache import DiskCache, user_folder
from flow_core.plugins.machine import describe_machine
from flow_core.plugins.registry import Registry

LIMIT = 16 << 20
"""Maximum size of the cache in bytes."""


def _cache() -> DiskCache:
    return DiskCache(user_folder("flow-core") / "kernel_costs", ".json", LIMIT, by_path=False)


def _key(registry: Registry) -> list[str]:
    facts = describe_machine(registry)
    return ["kernel costs 1", *(f"{name}: {text}" for name, text in sorted(facts.items()))]


def read_kernels(registry: Registry) -> dict[str, float]:
    """Return the kept seconds of kernels, by `flow_core.costs.model.kernel_key`."""

    def decode(content: bytes) -> dict[str, float]:
        rows = json.loads(content)
        if not isinstance(rows, dict):
            raise ValueError("it is no table")
        return {str(key): float(seconds) for key, seconds in rows.items()}

    return _cache().decoded(_key(registry), decode) or {}


def keep_kernels(registry: Registry, measured: Mapping[str, float]) -> None:
    """Add measured seconds of kernels to the kept ones, and replace those with the same key."""
    merged = {**read_kernels(registry), **measured}
    _cache().write(_key(registry), json.dumps(merged).encode())
