"""Variables have no kernel: they are memory of the session, which other ops read and write."""

from __future__ import annotations

from flow_core.plugins.specs import KernelSpec

KERNELS: tuple[KernelSpec, ...] = ()
