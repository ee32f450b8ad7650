"""Subcommands that plugins add to ``flow``."""

from __future__ import annotations

from collections.abc import Iterable

import click

from flow_core.base.config import Settings
from flow_core.base.errors import FlowError, PluginConflictError, PluginError, PluginResultError
from flow_core.plugins.guards import plugin_error
from flow_core.plugins.host import Host
from flow_core.plugins.records import Origin
from flow_core.plugins.registry import HookCall


def plugin_commands(taken: Iterable[str]) -> dict[str, click.Command]:
    """Return the commands of all plugins by name; print failures of plugins to standard error."""
    try:
        entries = Host(Settings.from_env()).load_commands()
    except PluginError as error:
        click.echo(f"flow: plugins are not loaded: {error}", err=True)
        return {}
    commands, failures = collect_commands(entries, taken)
    for failure in failures:
        click.echo(f"flow: {failure}", err=True)
    return commands


def collect_commands(
    entries: Iterable[HookCall], taken: Iterable[str]
) -> tuple[dict[str, click.Command], list[PluginError]]:
    """Return the commands of plugins, and the errors of plugins that failed.

    If the name of one of a plugin's commands is taken, none of that plugin's commands are used.
    """
    owners = dict.fromkeys(taken, "flow-core")
    found: dict[str, click.Command] = {}
    failures: list[PluginError] = []
    for entry in entries:
        try:
            commands = _commands_of(entry)
            for name in commands:
                _check_free(name, entry, owners)
        except PluginError as error:
            failures.append(error)
            continue
        for name, command in commands.items():
            owners[name] = str(entry.origin)
            found[name] = _named(name, command, entry.origin)
    return found, failures


def _named(name: str, command: click.Command, origin: Origin) -> click.Command:
    """Make the exceptions of a command name the command and its plugin; return the command."""
    invoke = command.invoke

    def guarded(ctx: click.Context) -> object:
        passing = (FlowError, click.ClickException, click.Abort, click.exceptions.Exit)
        try:
            return invoke(ctx)
        except passing:
            raise
        except Exception as error:
            raise plugin_error(f"running command {name!r} of {origin}", origin, error) from error

    command.invoke = guarded  # type: ignore[method-assign]  # also runs subcommands
    return command


def _commands_of(entry: HookCall) -> dict[str, click.Command]:
    """Return the commands of one plugin, collected in a separate group."""
    group = click.Group()
    attempted = f"hook flow_register_commands of {entry.origin}"
    try:
        entry.call(group)
    except (Exception, SystemExit) as error:
        raise plugin_error(attempted, entry.origin, error) from error
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
