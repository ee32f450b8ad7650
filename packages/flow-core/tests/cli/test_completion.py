"""Shell completion of `flow`, `flow-dist` and `flow-rules` in bash, zsh and fish."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import processes
import pytest
from click.shell_completion import BashComplete, get_completion_class

from flow_core.cli.app import cli
from flow_dist.cli import main as flow_dist
from flow_rules.cli import main as flow_rules

PROGRAMS = {"flow": cli, "flow-dist": flow_dist, "flow-rules": flow_rules}
FLOW = Path(sys.executable).with_name("flow")
WORDS = {
    "bash": ("COMP_WORDS", "COMP_CWORD", "{count}", "plain,{word}"),
    "zsh": ("COMP_WORDS", "COMP_CWORD", "{count}", "plain\n{word}\n"),
    "fish": ("COMP_WORDS", "COMP_CWORD", "{last}", "plain,{word}"),
}
"""How a shell passes the words of a line, and what it gets for each completion."""


def completed(shell: str, line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a program answers to a shell for a line whose last word is incomplete."""
    *_, last = words = line.split(" ")
    name, position, form, _ = WORDS[shell]
    monkeypatch.setenv(name, line)
    monkeypatch.setenv(position, form.format(count=len(words) - 1, last=last))
    found = get_completion_class(shell)
    assert found is not None
    return found(PROGRAMS[words[0]], {}, words[0], "_COMPLETE").complete()


@pytest.mark.parametrize("shell", WORDS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flow v", ["verify"]),
        ("flow fit --mem", ["--memory"]),
        ("flow verify --precision bf", ["bfloat16"]),
        ("flow serv", ["serve"]),  # a plugin's
        ("flow-dist run --strag", ["--stragglers"]),
        ("flow-rules dtensor --sea", ["--search"]),
    ],
)
def test_words_are_completed(
    shell: str, line: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = completed(shell, line, monkeypatch)
    for word in words:
        assert WORDS[shell][-1].format(word=word) in answer


@pytest.mark.parametrize("shell", WORDS)
@pytest.mark.parametrize(
    "command",
    [
        *("flow plan", "flow fit --memory 1GiB", "flow verify --matrix", "flow replay"),
        *("flow-dist run -n 2", "flow-rules check"),
    ],
)
def test_scripts_and_files_are_completed(
    shell: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(shell, f"{command} tra", monkeypatch).startswith("file")


def test_bash_completes_a_command(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    known = BashComplete(cli, {}, "flow", "_FLOW_COMPLETE")
    source = known.source_template % known.source_vars()
    ask = 'COMP_WORDS=(flow str); COMP_CWORD=1; _flow_completion flow; echo "${COMPREPLY[@]}"'
    script = f'PATH="{FLOW.parent}:$PATH"\n{source}\n{ask}\n'
    done = processes.run([bash, "--norc", "-c", script], check=True, cwd=tmp_path)
    assert done.stdout.split() == ["stragglers"]
