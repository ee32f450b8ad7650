"""The help texts of `flow`, with the commands of plugins, of `flow-dist` and of `flow-rules`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import processes
import pytest

from flow_core.cli.app import cli
from flow_dist.cli import main as flow_dist
from flow_rules.cli import main as flow_rules

SCREEN = 50
"""Lines of a terminal of 80 columns."""

VERBS = frozenset(
    [
        *("Allow", "Also", "Check", "Compare", "Compute", "Continue", "Count", "Create"),
        *("Distribute", "Draw", "Emulate", "Evaluate", "Let", "List", "Measure", "Print", "Prove"),
        *("Reach", "Read", "Report", "Reserve", "Restart", "Resume", "Search", "Send", "Show"),
        *("Shuffle", "Simulate", "Start", "Stop", "Use", "Write"),
    ]
)


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


PROGRAMS = {"flow": cli, "flow-dist": flow_dist, "flow-rules": flow_rules}
ALL = {name: found for path, one in PROGRAMS.items() for name, found in commands(one, path)}


@pytest.mark.parametrize("name", ALL)
def test_options_are_described_by_sentences(name: str) -> None:
    options = [p for p in ALL[name].params if isinstance(p, click.Option)]
    wrong = [o.opts[0] for o in options if not is_sentence(o.help or "")]
    assert wrong == []


@pytest.mark.parametrize("name", ALL)
def test_commands_begin_with_a_sentence(name: str) -> None:
    assert (ALL[name].help or "").split("\n")[0].rstrip().endswith((".", "?", ":")), name


@pytest.mark.parametrize("name", [*PROGRAMS, *ALL])
def test_help_fits_one_screen(name: str) -> None:
    lines = help_of(name).splitlines()
    assert len(lines) < SCREEN
    assert all(len(line) <= 80 for line in lines)


def help_of(name: str) -> str:
    command = {**PROGRAMS, **ALL}[name]
    return command.get_help(click.Context(command, info_name=name, terminal_width=80))


LARGE = ("numpy", "rich", "google.protobuf", "pluggy", "flow_core.compiler", "flow_core.plugins")
"""Modules that a command loads when it runs."""


def test_the_help_of_a_command_loads_no_large_module() -> None:
    program = f"""
import sys
from flow_core.cli.app import cli
cli(["plan", "--help"], standalone_mode=False)
print("loaded:", *{set(LARGE)} & sys.modules.keys())
"""
    done = processes.run([sys.executable, "-c", program], check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


FINDS = {
    "fit": "fit into a device",
    "verify": "all its forms, resumption, waits, precision",
    "ops": "sharding rules",
    "plan": "check budgets, advise changes",
    "replay": "recorded step",
    "debug": "first NaN",
    "stragglers": "how fast the processes",
}
"""The help texts that lead to the commands that check plans and steps."""


@pytest.mark.parametrize("name", FINDS)
def test_a_newcomer_finds_each_check(name: str) -> None:
    lines = help_of("flow").splitlines()
    (line,) = (line for line in lines if line.startswith(f"  {name} "))
    assert FINDS[name] in line


def test_other_programs_are_named() -> None:
    text = help_of("flow")
    assert "flow-dist" in text
    assert "flow-rules" in text


def is_sentence(text: str) -> bool:
    return text.split(" ")[0] in VERBS and text.endswith(".") and len(text.split()) > 2


def test_fragments_are_no_sentences() -> None:
    assert not is_sentence("Number of processes.")
    assert not is_sentence("Show it")
    assert is_sentence("Show the plan.")
