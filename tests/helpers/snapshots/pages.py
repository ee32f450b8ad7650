"""The documentation's pages, with the output that their programs print.

The ``python`` blocks of a page run in order as one program; a ``text`` block right below one is
its output.  Blocks with a title are files.  In ``console`` blocks the lines with ``$`` are
commands, the rest is their output.  ``...`` matches anything.  Quoted output is replaced where the
printed output does not agree with it.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest
from suite import preloaded

ROOT = Path(__file__).parents[3]
PATHS = (
    "README.md",
    *(
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.glob("docs/howto/*.md"))
        if "```python" in path.read_text()
    ),
    *(
        f"docs/{name}.md"
        for name in (
            "tutorial",
            "architecture",
            "checkpoints",
            "onnx",
            "plugins/backend",
            "plugins/passes",
            "plugins/formats",
            "plugins/others",
        )
    ),
)
FENCED = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]\d+)?")
TIME = re.compile(r"\d+\.\d+ ms$", re.MULTILINE)
PROCESSOR = re.compile(
    r"^  (?:tasks|arena of \S+)  .*  [+-][\d.]+(?: \w+)?(?:\n|$)"  # of `flow plan --diff`
    r"|^  (?:equal|inherited|rounding|first that differs|largest relative error)  .*(?:\n|$)"
    r"|^  \S+ .*  (?:inherited|rounding)  .*(?:\n|$)",  # of `flow verify`
    re.MULTILINE,
)
"""Output that depends on the rounding of the processor's BLAS, as the pages state."""
PYTHON_PATH = os.environ.get("PYTHONPATH", "")
COMMANDS = {
    "flow": ("-m", "flow_core.cli"),
    "flow-rules": ("-m", "flow_rules"),
    "pytest": ("-m", "pytest"),
    "python": (),
}


@dataclass(frozen=True)
class Block:
    """A fenced block; ``printed`` is its quoted output, ``span`` the position of that.

    ``quoted`` is a pattern of what is written there.
    """

    kind: str
    title: str | None
    text: str
    printed: str
    span: tuple[int, int]
    quoted: str = "{}"


def blocks(page: str) -> Iterator[Block]:
    """Yield the executable blocks and files of a page."""
    found = list(FENCED.finditer(page))
    for match, after in zip(found, [*found[1:], None], strict=True):
        kind, title, text = match["kind"], match["title"], match["text"]
        if title or kind == "python":
            below = after is not None and after["kind"] == "text" and not title
            if after is not None and below and not page[match.end() : after.start()].strip():
                yield Block(kind, title, text, after["text"], after.span("text"))
            else:
                end = match.end()
                yield Block(kind, title, text, "", (end, end), "\n\n```text\n{}```")
        elif kind == "console":
            command, _, printed = text.partition("\n")
            start = match.start("text") + len(command) + 1
            yield Block(kind, None, command.removeprefix("$ "), printed, (start, match.end("text")))


# ------------------------------------------------------------------------- in a child process


def run_blocks(page: str, address: str) -> list[str]:
    """Run the blocks of a page in the working directory; return their output.

    Commands run in the interpreter at the address.
    """
    program = {"__name__": "__main__"}
    printed, line = [], 0
    for block in blocks(page):
        if block.title:
            write_file(Path(block.title), block.text)
            printed.append("")
        elif block.kind == "console":
            printed.append(run_command(block.text, address))
        else:
            code = compile("\n" * line + block.text, "tutorial.py", "exec")
            line += block.text.count("\n")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, program)
            printed.append(out.getvalue())
    return printed


def write_file(path: Path, text: str) -> None:
    """Write a file of the page; for a pyproject.toml also the metadata of an installation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if path.name == "pyproject.toml":
        write_metadata(text)


def write_metadata(text: str) -> None:
    """Write the metadata of an installation of a pyproject.toml into the working directory."""
    project = tomllib.loads(text)["project"]
    info = Path(f"{project['name'].replace('-', '_')}-{project['version']}.dist-info")
    info.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(header)
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n{name} = {value}" for group, e in groups for name, value in e.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run_command(command: str, address: str) -> str:
    """Run a command; return its output."""
    words = shlex.split(command)
    settings = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    if words[:4] == ["uv", "pip", "install", "-e"]:
        return install(Path(words[4]))
    program, env = preloaded.command(address, *COMMANDS[words[0]]), {**os.environ, **settings}
    done = processes.run([*program, *words[1:]], env=env, stderr=processes.STDOUT, timeout=300)
    return str(done.stdout)


def install(package: Path) -> str:
    """Make a package with a folder src importable for the following programs; print nothing."""
    write_metadata((package / "pyproject.toml").read_text())
    os.environ["PYTHONPATH"] = os.pathsep.join((str(package.resolve() / "src"), PYTHON_PATH))
    return ""


# ---------------------------------------------------------------------------------- comparison


_shared: list[str] = []
"""The address of the interpreter, within `sharing`."""


@contextlib.contextmanager
def sharing(address: str) -> Iterator[None]:
    """Run programs of pages in forks of the interpreter at an address."""
    _shared.append(address)
    yield
    _shared.pop()


def outputs(page: str, folder: Path) -> list[str]:
    """Return the output of a page's blocks, which run with default settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "ONEFLOW_"))}
    path = (str(folder), str(Path(__file__).parents[1]), PYTHON_PATH)
    env |= preloaded.SETTINGS | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    with contextlib.nullcontext(_shared[0]) if _shared else preloaded.Interpreter() as address:
        command = preloaded.command(address, __file__, address)
        done = processes.run(command, input=page, check=True, timeout=300, cwd=folder, env=env)
    plain: list[str] = json.loads(done.stdout)
    return [text.replace(f"{folder}{os.sep}", "").rstrip() for text in plain]


def _settled(text: str) -> str:
    """Remove times, rounding and column widths from a text."""
    text = PROCESSOR.sub("", TIME.sub("0.0 ms", text))
    return re.sub("  +", "  ", text).rstrip()


def agree(said: str, printed: str) -> bool:
    """Whether texts agree except for ``...``, times, rounding, and small differences."""
    if "..." in said:
        said = re.sub(r"\.\.\. (us|ms|s)\b", "...", said)  # on a slow machine, 1 ms in place of us
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        return doctest.OutputChecker().check_output(said, printed, flags)
    said, printed = (_settled(text) for text in (said, printed))
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=False)
    return NUMBER.sub("0.0", said) == NUMBER.sub("0.0", printed) and all(
        float(a) == pytest.approx(float(b), rel=0.1, abs=0.05) for a, b in pairs
    )


def text(name: str, page: str) -> str:
    """Return a page with the output that its programs print, where the quoted one differs."""
    with tempfile.TemporaryDirectory() as folder:
        found = list(zip(blocks(page), outputs(page, Path(folder).resolve()), strict=True))
    assert found, f"{name} has no programs"
    for block, printed in reversed(found):
        start, end = block.span
        if not agree(block.printed.rstrip(), printed):
            page = page[:start] + block.quoted.format(printed + "\n" * bool(printed)) + page[end:]
    return page


if __name__ == "__main__":
    warnings.simplefilter("error")
    json.dump(run_blocks(sys.stdin.read(), sys.argv[1]), sys.stdout)
