"""Options of all commands that take numbers: none takes NaN or infinity."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from flow_core.cli.app import cli
from flow_dist.cli import main


def options(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield each command line, without the value, that ends in an option with a float value."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):  # also those that plugins add when it runs
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, (*path, name))
        return
    for option in command.params:
        if isinstance(option.type, click.types.FloatParamType):
            yield (*path, option.opts[0])


COMMANDS = {"flow": cli, "flow-dist": main}
CASES = [case for name, command in COMMANDS.items() for case in options(command, (name,))]


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_an_option_takes_finite_numbers(case: tuple[str, ...], number: str) -> None:
    name, *command, option = case
    done = CliRunner().invoke(COMMANDS[name], [*command, option, number, "script.py"])
    assert done.exit_code == 2
    assert f"{number} is not a finite number" in done.stderr


def test_all_packages_have_such_options() -> None:
    assert {case[:2] for case in CASES} >= {
        ("flow", "verify"),
        ("flow", "serve"),
        ("flow-dist", "run"),
    }


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
def test_resources_of_a_rank_are_finite(number: str) -> None:
    done = CliRunner().invoke(main, ["run", "--ray", "--each", f"CPU={number}", __file__])
    assert done.exit_code == 2
    assert "is not a number of resources" in done.stderr
