"""Subcommands that plugins add to ``flow``."""

from __future__ import annotations

from collections.abc import Iterable

import click

from flow_core.base.errors import PluginConflictError, PluginError, PluginResultError
from flow_core.plugins.host import default_registry
from flow_core.plugins.registry import HookCall, Registry


def plugin_commands(taken: Iterable[str]) -> dict[str, click.Command]:
    """Return the commands of all plugins by name; report plugins that fail on standard error.

    Args:
        taken: names of core's commands.

    Raises:
        PluginConflictError: two plugins, or a plugin and core, have a command of the same name.
    """
    try:
        registry = default_registry()
    except PluginError as error:
        click.echo(f"flow: plugins are not loaded: {error}", err=True)
        return {}
    commands, failures = collect_commands(registry, taken)
    for failure in failures:
        click.echo(f"flow: {failure}", err=True)
    return commands


def collect_commands(
    registry: Registry, taken: Iterable[str]
) -> tuple[dict[str, click.Command], list[PluginError]]:
    """Return the commands of a registry's plugins, and the errors of plugins that failed.

    Raises:
        PluginConflictError: see `plugin_commands`.
    """
    owners = dict.fromkeys(taken, "flow-core")
    found: dict[str, click.Command] = {}
    failures: list[PluginError] = []
    for entry in registry.commands:
        try:
            commands = _commands_of(entry)
        except PluginError as error:
            failures.append(error)
            continue
        for name, command in commands.items():
            _check_free(name, entry, owners)
            owners[name] = str(entry.origin)
            found[name] = command
    return found, failures


def _commands_of(entry: HookCall) -> dict[str, click.Command]:
    """Return the commands of one plugin, collected in a separate group."""
    group = click.Group()
    attempted = f"hook flow_register_commands of {entry.origin}"
    try:
        entry.call(group)
    except (Exception, SystemExit) as error:
        raise PluginError(attempted, found=f"{type(error).__name__}: {error}") from error
    for name, command in group.commands.items():
        if not isinstance(command, click.Command):
            raise PluginResultError(
                attempted, found=f"{name!r} is {command!r}", allowed="click.Command"
            )
    return dict(group.commands)


def _check_free(name: str, entry: HookCall, owners: dict[str, str]) -> None:
    if name in owners:
        raise PluginConflictError(
            f"registering command {name!r} of {entry.origin}",
            found=f"{owners[name]} has a command of that name",
            allowed="one command per name",
            hint=f"disable the plugin: FLOW_DISABLE_PLUGINS={entry.origin.plugin}",
        )
