"""``oneflow.sysconfig``; see `flow_core.api.compat.unsupported`."""

from flow_core.api.compat.unsupported import get_compile_flags, get_include, get_lib, get_link_flags

__all__ = ["get_compile_flags", "get_include", "get_lib", "get_link_flags"]
