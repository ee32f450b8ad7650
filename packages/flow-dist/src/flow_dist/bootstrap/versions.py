"""Which packages a process runs: others make other plans, and mean other things by a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from flow_core.plugins.hookspecs import GROUP
from flow_dist.bootstrap.membership import LaunchError


def own_versions() -> dict[str, str]:
    """The versions of core and all distributions that bring plugins."""
    found = {"flow-core": metadata.version("flow-core")}
    for point in metadata.entry_points(group=GROUP):
        if point.dist is not None:
            found[point.dist.name] = point.dist.version
    return found


def check_versions(hosts: Sequence[str], gather: Callable[[Any], Sequence[Any]]) -> None:
    """Refuses processes that run other versions than the first one, before they plan anything.

    A plugin that only some hosts have may bring nothing but kernels for these, which is all right;
    where it changes plans, comparing them says how.

    Args:
        hosts: names of the hosts of all ranks, as far as they are known.
        gather: gives every process what all of them pass, of JSON's kinds.

    Raises:
        LaunchError: they differ; in all processes.
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
                hint="install the same environment everywhere, such as with uv sync --frozen",
            )


def _text(names: Sequence[str], versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in names)


def _on(hosts: Sequence[str], rank: int) -> str:
    return f" on {hosts[rank]}" if rank < len(hosts) else ""
