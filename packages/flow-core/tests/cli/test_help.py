"""The help texts of the commands of core and of plugins."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from flow_core.cli.app import cli

VERBS = frozenset(
    [
        *("Allow", "Also", "Compare", "Continue", "Count", "Create", "Distribute", "Draw"),
        *("Emulate", "Evaluate", "Let", "List", "Measure", "Print", "Prove", "Reach", "Read"),
        *("Report", "Reserve", "Restart", "Resume", "Send", "Show", "Shuffle", "Simulate"),
        *("Start", "Stop", "Use", "Write"),
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


ALL = dict(commands(cli, "flow"))


@pytest.mark.parametrize("name", ALL)
def test_options_are_described_by_sentences(name: str) -> None:
    options = [p for p in ALL[name].params if isinstance(p, click.Option)]
    wrong = [o.opts[0] for o in options if not is_sentence(o.help or "")]
    assert wrong == []


@pytest.mark.parametrize("name", ALL)
def test_commands_begin_with_a_sentence(name: str) -> None:
    assert (ALL[name].help or "").split("\n")[0].rstrip().endswith((".", "?", ":")), name


def is_sentence(text: str) -> bool:
    return text.split(" ")[0] in VERBS and text.endswith(".") and len(text.split()) > 2


def test_fragments_are_no_sentences() -> None:
    assert not is_sentence("Number of processes.")
    assert not is_sentence("Show it")
    assert is_sentence("Show the plan.")
