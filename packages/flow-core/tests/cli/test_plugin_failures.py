"""Commands and diagnostics of plugins that fail are named, and do not affect others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flow_core.base.config import Settings
from flow_core.base.errors import PluginConflictError, PluginError
from flow_core.cli import doctor
from flow_core.cli.app import FlowGroup
from flow_core.cli.plugin_commands import collect_commands
from flow_core.plugins import host
from flow_core.plugins.host import Candidate, Host
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import DeviceSpec, KernelSpec


class Plugin:
    """A plugin with some hooks."""

    FLOW_PLUGIN_API = "1.0"

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        vars(self).update(hooks)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs plugins of some names."""

    def with_plugins(**plugins: Plugin) -> None:
        candidates = [
            Candidate(Origin(name, f"flow-{name}", "1.2"), lambda plugin=plugin: plugin)  # type: ignore[misc]
            for name, plugin in plugins.items()
        ]
        monkeypatch.setattr(host, "_installed", lambda: iter(candidates))

    return with_plugins


def fails() -> None:
    raise ValueError("no cubes today")


def cubes(cli: click.Group) -> None:
    cli.command("cubes")(fails)
    cli.command("more")(lambda: click.echo("27"))


def test_command_that_raises_is_named(install: Callable[..., None]) -> None:
    install(bad=Plugin(flow_register_commands=cubes))
    commands, failures = collect_commands(Host(Settings()).load().commands, ())
    assert not failures
    group = FlowGroup("flow", commands=commands)  # type: ignore[arg-type]
    assert CliRunner().invoke(group, ["more"]).output == "27\n"
    done = CliRunner().invoke(group, ["cubes"])
    assert done.exit_code == 1
    assert "running command 'cubes' of plugin 'bad' of flow-bad 1.2" in done.output
    assert f"ValueError: no cubes today (at {__file__}:" in done.output
    with pytest.raises(PluginError) as caught:
        commands["cubes"].main([], standalone_mode=False)
    assert isinstance(caught.value.__cause__, ValueError)


def test_duplicate_command_disables_the_commands_of_the_later_plugin(
    install: Callable[..., None],
) -> None:
    def also(cli: click.Group) -> None:
        cli.command("other")(fails)
        cli.command("cubes")(fails)

    install(first=Plugin(flow_register_commands=cubes), bad=Plugin(flow_register_commands=also))
    registry = Host(Settings()).load()
    commands, (failure,) = collect_commands(registry.commands, ())
    owners = [entry.origin.plugin for entry in registry.commands]
    assert set(commands) == ({"cubes", "more"} if owners[0] == "first" else {"cubes", "other"})
    assert isinstance(failure, PluginConflictError)
    assert f"registering command 'cubes' of plugin '{owners[1]}'" in str(failure)
    assert f"plugin '{owners[0]}' of flow-{owners[0]} 1.2" in str(failure)


@pytest.mark.slow
def test_doctor_names_what_hangs(install: Callable[..., None]) -> None:
    stop = threading.Event()
    install(
        bad=Plugin(
            flow_register_devices=lambda: [DeviceSpec("abacus", stop.wait, "a:b")],
            flow_doctor=lambda: stop.wait(),
        ),
        good=Plugin(flow_doctor=lambda: "27 is a cube"),
    )
    found = doctor.diagnose(Settings(probe_seconds=1))
    stop.set()
    tables = {table.title: table.rows for table in found.tables}
    (abacus,) = (row for row in tables["Devices"] if row[0] == "abacus")
    assert abacus[1:3] == ("flow-bad", "unavailable")
    assert "its probe did not return within 1 seconds" in abacus[3]
    assert ("bad", "flow_doctor did not return within 1 seconds") in tables["What plugins say"]
    assert ("good", "27 is a cube") in tables["What plugins say"]


@pytest.mark.filterwarnings("ignore::flow_core.base.errors.PluginWarning")
def test_doctor_shows_versions_duplicates_and_refused_records(install: Callable[..., None]) -> None:
    newer = Plugin()
    newer.FLOW_PLUGIN_API = "1.9"
    install(
        first=Plugin(flow_register_devices=lambda: [DeviceSpec("abacus", "a:b", "a:c")]),
        bad=Plugin(flow_register_devices=lambda: [DeviceSpec("abacus", "a:b", "a:c")]),
        typo=Plugin(flow_register_kernels=lambda: [KernelSpec("reluu", "cpu", "a:b")]),
        newer=newer,
    )
    found = doctor.diagnose(Settings())
    (plugins,) = (table.rows for table in found.tables if table.title == "Plugins")
    rows = {row[0]: row[1:] for row in plugins}
    assert rows["first"][:3] == ("flow-first 1.2", "1.0", "loaded")
    assert rows["bad"][:3] == ("flow-bad 1.2", "1.0", "failed")
    assert rows["typo"] == ("flow-typo 1.2", "1.0", "loaded", "1 kernels, 1 records refused")
    assert rows["newer"][:3] == ("flow-newer 1.2", "", "failed")
    problems = "\n".join(found.problems)
    assert "device 'abacus' is already registered by plugin 'first' of flow-first 1.2" in problems
    assert "registering kernel of op 'reluu' on device type 'cpu' of plugin 'typo'" in problems
    assert "did you mean relu" in problems
    assert "FLOW_PLUGIN_API = '1.9'" in problems
