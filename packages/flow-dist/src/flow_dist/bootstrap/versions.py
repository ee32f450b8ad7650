"""Check that all processes run the same package versions, because plans depend on the versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from flow_core.plugins.hookspecs import GROUP
from flow_dist.bootstrap.membership import LaunchError


def own_versions() -> dict[str, str]:
    """Return the versions of flow-core and of all distributions that provide plugins."""
    versions = {"flow-core": metadata.version("flow-core")}
    for point in metadata.entry_points(group=GROUP):
        if point.dist is not None:
            versions[point.dist.name] = point.dist.version
    return versions


def check_versions(hosts: Sequence[str], gather: Callable[[Any], Sequence[Any]]) -> None:
    """Raise an error, before anything is planned, unless all processes run rank 0's versions.

    Only packages that both processes have are compared, because a plugin on some hosts may only
    provide kernels for those hosts.  If such a plugin changes plans, the comparison of plans
    reports the difference.

    Args:
        hosts: host names in rank order, as far as they are known.
        gather: all-gathers a JSON value over all processes.

    Raises:
        LaunchError: the versions differ; raised in all processes.
    """
    first, *others = gather(own_versions())
    for rank, theirs in enumerate(others, 1):
        names = [n for n in sorted({*first} & {*theirs}) if first[n] != theirs[n]]
        if names:
            raise LaunchError(
                "joining the processes",
                found=f"{_text(names, theirs)} in rank {rank}{_on(hosts, rank)}, but "
                f"{_text(names, first)} in rank 0{_on(hosts, 0)}",
                allowed="the same packages on all hosts",
                hint="install the same environment everywhere, for example with uv sync --frozen",
            )


def _text(names: Sequence[str], versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in names)


def _on(hosts: Sequence[str], rank: int) -> str:
    return f" on {hosts[rank]}" if rank < len(hosts) else ""
