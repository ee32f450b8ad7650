"""The ``flow-rules`` command."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import flow_rules
from flow_rules.check import Report, check
from flow_rules.errors import RulesError
from flow_rules.evaluators import load_evaluator
from flow_rules.files import read_rules

if TYPE_CHECKING:
    from flow_rules.dtensor.check import Totals

SHOWN = 20
"""Findings that are printed without ``--all``."""


class _Group(click.Group):
    """A group of commands that prints errors for the user without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it with a status other than that of wrong rules."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            ctx.exit(130)
        except RulesError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flow_rules.__version__, prog_name="flow-rules")
def main() -> None:
    """Prove sharding rules by brute force."""


@main.command("check")
@click.option("--op", "ops", multiple=True, metavar="NAME", help="Check this op; repeatable.")
@click.option(
    "--search", is_flag=True, help="Search for missing rules as well, which takes longer."
)
@click.option("--all", "whole", is_flag=True, help=f"Print all findings, not the first {SHOWN}.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--evaluator",
    default="flow_core.testing.rules",
    show_default=True,
    metavar="MODULE",
    help="Compute the ops by this module; see flow_rules.Evaluator.",
)
@click.argument("file", type=click.Path())
@click.pass_context
def check_file(
    ctx: click.Context,
    ops: Sequence[str],
    search: bool,
    whole: bool,
    as_json: bool,
    evaluator: str,
    file: str,
) -> None:
    """Check the rules in FILE, which `flow ops --json` writes.

    The inputs of each case are drawn several times and split over 1 to 4 devices.

    Exit status: 0 if all rules hold and none is missing; 1 if not, if no case could be checked, or
    if FILE is not valid.
    """
    given = read_rules(file)
    unknown = sorted({*ops} - {op.type for op in given.ops})
    if unknown:
        raise RulesError(f"checking {file}: it has no op {unknown[0]!r}")
    report = check(given, load_evaluator(evaluator), ops, search)
    show(report, whole, as_json, search)
    ctx.exit(1 if report.wrong or report.missing or not report.cases else 0)


def show(report: Report, whole: bool, as_json: bool, searched: bool) -> None:
    """Print a report."""
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
        return
    for findings in (report.wrong, report.missing):
        for finding in findings[: None if whole else SHOWN]:
            click.echo(" ".join(str(finding).split())[:400])
        if len(findings) > SHOWN and not whole:
            click.echo(f"... and {len(findings) - SHOWN} more: --all")
    click.echo(f"{report.ops} ops, {report.cases} cases, {report.rules} rules, ", nl=False)
    missing = f", {len(report.missing)} missing" if searched else ""
    click.echo(f"{report.trials} trials: {len(report.wrong)} wrong{missing}")
    for reason, count in sorted(report.skipped.items()):
        click.echo(f"skipped {count}: {reason}")


@main.command("dtensor")
@click.option(
    "--samples",
    default="",
    metavar="REGEX",
    help="Check the ops that the samples of matching functions of PyTorch call.",
)
@click.option(
    "--search", is_flag=True, help="Search for missing rules as well, which takes longer."
)
@click.option(
    "--all",
    "whole",
    is_flag=True,
    help=f"Print all findings, not the first {SHOWN}, and why ops are not checked or searched.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_context
def dtensor(ctx: click.Context, samples: str, search: bool, whole: bool, as_json: bool) -> None:
    """Check the rules that the DTensor of the installed PyTorch declares.

    The calls of ATen ops that PyTorch's own samples make are split over 2 and 3 devices, in one
    process and without communication.

    Exit status: 0 if all declared rules hold, 1 if not, or if no call was checked.
    """
    try:
        from flow_rules.dtensor.check import check_dtensor
    except ImportError as error:
        hint = "pip install 'flow-rules[torch]'"
        raise RulesError(f"checking DTensor: {error}: {hint}") from error
    try:
        pattern = re.compile(samples)
    except re.error as error:
        raise RulesError(f"reading --samples {samples!r}: {error}") from error
    wanted = (lambda name: bool(pattern.search(name))) if samples else None
    totals = check_dtensor(wanted, search)
    if as_json:
        click.echo(json.dumps(totals.to_json(), indent=2))
    else:
        show_totals(totals, whole, search)
    ctx.exit(1 if totals.wrong or not totals.calls else 0)


def show_totals(totals: Totals, whole: bool, searched: bool) -> None:
    """Print what the check of DTensor has found."""
    for kind, found in (("wrong", totals.wrong), ("missing", totals.missing)):
        for item in found[: None if whole else SHOWN]:
            where = f" on {item.devices} devices: {item.reason}" if item.devices else ""
            click.echo(" ".join(f"{kind}: {item.call}: {item.rule}{where}".split())[:400])
        if len(found) > SHOWN and not whole:
            click.echo(f"... and {len(found) - SHOWN} more: --all")
    versions = ", ".join(f"{name} {version}" for name, version in totals.versions.items())
    wrong, missing = ({x.op for x in row} for row in (totals.wrong, totals.missing))
    click.echo(
        f"{versions}: {totals.registered} ops registered; checked {totals.ops} ops, ", nl=False
    )
    click.echo(f"{totals.calls} calls, {totals.rules} rules")
    if totals.derived:
        click.echo(f"calls of {totals.derived} ops: from related ops, or from the schema")
    click.echo(f"wrong: {len(totals.wrong)} rules of {len(wrong)} ops")
    if searched:
        click.echo(f"missing: {len(totals.missing)} rules of {len(missing)} ops; ", nl=False)
        click.echo(f"searched {totals.searched} ops")
    if totals.unknown:
        click.echo(f"not checked: {totals.unknown} rules with other placements")
    for kind, table in (("checked", totals.unchecked), ("searched", totals.unsearched)):
        reasons = Counter(text.partition(":")[0] for text in table.values())
        for reason, count in sorted(reasons.items()):
            click.echo(f"not {kind}: {count} ops: {reason}")
        for op, text in sorted(table.items()) if whole else ():
            click.echo(f"not {kind}: {op}: {text}")
    for reason, count in sorted(totals.skipped.items()):
        click.echo(f"skipped {count}: {reason}")
