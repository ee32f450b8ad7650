"""The pages of the public functions and classes, and of the namespaces that hold them."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from reference_pages import docstrings, ops
from reference_pages.names import Entry, element_types
from reference_pages.signatures import signature
from reference_pages.tasks import by_task

FOLDER = "reference"
IMPORTS = {
    "np.": "import numpy as np",
    "flow.": "import oneflow as flow",
    "tp.": "import oneflow.typing as tp",
}


@cache
def facts() -> dict[str, dict[str, str]]:
    """Return, for each public name, its formula and how OneFlow and torch differ."""
    return tomllib.loads((Path(__file__).parent / "facts.toml").read_text())


def page_of(name: str) -> str:
    """Return the path of the page of a public name.

    >>> page_of("flow.nn.conv2d")
    'reference/flow.nn.conv2d.md'
    """
    return f"{FOLDER}/{name}.md"


def pages(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Yield the path and text of every page of the public reference."""
    for entry in entries:
        yield page_of(entry.name), "\n".join(_entry(entry)) + "\n"
        for other in entry.others:
            yield page_of(other), _alias(other, entry)
    spaces = namespaces(entries)
    for space, members in spaces.items():
        yield f"{FOLDER}/{space}/index.md", "\n".join(_namespace(space, members)) + "\n"
    yield f"{FOLDER}/dtypes.md", "\n".join(_dtypes()) + "\n"
    yield f"{FOLDER}/index.md", "\n".join(_index(entries, list(spaces))) + "\n"


def namespaces(entries: Sequence[Entry]) -> dict[str, list[tuple[str, Entry]]]:
    """Return the names of each namespace with their entries, sorted."""
    found: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
    for entry in entries:
        for name in (entry.name, *entry.others):
            found[name.rpartition(".")[0]].append((name, entry))
    return {space: sorted(found[space], key=lambda pair: pair[0]) for space in sorted(found)}


# ------------------------------------------------------------------------ a function or class


def _entry(entry: Entry) -> Iterator[str]:
    doc = docstrings.parse(entry.object.__doc__)
    yield from (f"# {entry.name}", "", f"[{entry.namespace}]({entry.namespace}/index.md)", "")
    call = signature(entry.name, entry.object).removesuffix(" -> None")
    yield from ("```python", call, "```", "")
    if doc.text:
        yield from (docstrings.fenced(doc.text), "")
    yield from _facts(entry.name)
    if entry.others:
        yield from (f"Other names: {', '.join(f'`{name}`' for name in entry.others)}.", "")
    if inspect.isclass(entry.object):
        yield from _class_parts(entry)
        return
    yield from _with_imports(docstrings.sections(doc, 2))
    types = ops.emitted(entry.object)
    if types:
        yield from ops.facts(types)
    yield from _shared(entry)


def _shared(entry: Entry) -> Iterator[str]:
    """Yield what the docstring of the function's module says about all of its functions."""
    text = docstrings.parse(inspect.getdoc(inspect.getmodule(entry.object))).text
    _, _, more = text.partition("\n\n")
    paragraphs = [p for p in more.split("\n\n") if p and not p.startswith("In: ")]
    if paragraphs:
        yield from ("## Common to this group of functions", "")
        yield from (docstrings.fenced("\n\n".join(paragraphs)), "")


def _facts(name: str) -> Iterator[str]:
    known = facts().get(name, {})
    if "formula" in known:
        yield from (f"Formula: `{known['formula']}`", "")
    for key, title in (("torch", "PyTorch"), ("oneflow", "OneFlow")):
        if key in known:
            yield from (f"{title}: {known[key]}", "")


def _with_imports(lines: list[str]) -> list[str]:
    """Add to the first example the imports that it uses."""
    found, done = [], False
    for line in lines:
        if not done and "```pycon\n" in line:
            done = True
            if "import oneflow" not in line:
                used = (v for k, v in IMPORTS.items() if re.search(rf"\b{re.escape(k)}", line))
                imports = "".join(f">>> {statement}\n" for statement in used)
                line = line.replace("```pycon\n", f"```pycon\n{imports}", 1)
        found.append(line)
    return found


def _class_parts(entry: Entry) -> Iterator[str]:
    doc = docstrings.parse(entry.object.__doc__)
    constructor = docstrings.parse(entry.object.__dict__.get("__init__", None).__doc__ or "")
    if "__init__" not in entry.object.__dict__:
        constructor = docstrings.parse("")
    if constructor.text and not constructor.text.startswith("Initialize self"):
        yield from (docstrings.fenced(constructor.text), "")
    for part in (constructor, doc):
        yield from _with_imports(docstrings.sections(part, 2))
    lines = methods(entry.object)
    if lines:
        yield from ("## Methods and properties", "", *lines)


def methods(found: Any) -> list[str]:
    """Return the documentation of the public methods and properties of a class."""
    pairs = _members(found) if inspect.isclass(found) else ()
    return [line for name, value in pairs for line in _member(name, value, found)]


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, with those of its bases in flow."""
    names: dict[str, Any] = {}
    for base in reversed(found.__mro__):
        if base.__module__.startswith("flow_"):
            names.update(vars(base))
    for name, member in names.items():
        callable_ = isinstance(member, classmethod | staticmethod) or inspect.isfunction(member)
        if not name.startswith("_") and (callable_ or isinstance(member, property)):
            yield name, member


def _member(name: str, member: Any, owner: type) -> Iterator[str]:
    yield from (f"### {name}", "")
    if isinstance(member, property):
        yield from (f"Property. {docstrings.fenced(member.__doc__ or '')}".rstrip(), "")
        return
    function = getattr(member, "__func__", member)
    bound = not isinstance(member, staticmethod)
    call = signature(f"{owner.__name__}.{name}", function, bound=bound)
    doc = docstrings.parse(function.__doc__)
    yield from ("```python", call, "```", "", docstrings.fenced(doc.text), "")
    yield from docstrings.sections(doc, 4)


def _alias(name: str, entry: Entry) -> str:
    text = docstrings.summary(entry.object.__doc__)
    return f"# {name}\n\nAnother name of [`{entry.name}`]({entry.name}.md).\n\n{text}\n"


# --------------------------------------------------------------------------------- namespaces


def _namespace(space: str, members: list[tuple[str, Entry]]) -> Iterator[str]:
    yield from (f"# {space}", "", "| name | description |", "|---|---|")
    for name, entry in members:
        target = Path(page_of(name)).name
        text = docstrings.cell(docstrings.summary(entry.object.__doc__))
        yield f"| [`{name}`](../{target}) | {text} |"
    if space == "flow":
        yield from ("", "The element types have [a page of their own](../dtypes.md).")


def _dtypes() -> Iterator[str]:
    yield from ("# Element types", "", "| name | numpy | bytes |", "|---|---|---|")
    for name, dtype in element_types():
        numpy = getattr(dtype, "numpy", None)
        size = getattr(numpy, "itemsize", "")
        yield f"| `{name}` | `{numpy}` | {size} |"


def _index(entries: Sequence[Entry], spaces: Sequence[str]) -> Iterator[str]:
    yield from ("# Reference", "")
    yield "Every public function and class has a page under its public name. `import oneflow as"
    yield "flow` is assumed, and left out of the names here. See also"
    yield "[element types](dtypes.md), [ops](ops.md), [errors](errors.md),"
    yield "[flow_fit](flow_fit.md) (training loops), [flow_rules](flow_rules.md) (a prover of"
    yield "sharding rules), [flow_zoo](flow_zoo.md) (networks), the"
    yield "[API for plugins](plugins/index.md) and, for contributors, the"
    yield "[modules of the packages](internals/index.md)."
    for title, members in by_task(entries).items():
        links = (f"[`{e.name.removeprefix('flow.')}`]({e.name}.md)" for e in members)
        yield from ("", f"## {title}", "", ",\n".join(links))
    yield from ("", "## By namespace", "")
    yield ",\n".join(f"[`{space}`]({space}/index.md)" for space in spaces)


def menu(entries: Sequence[Entry]) -> str:
    """Return the script of the side menu of the functions' pages."""
    names = {
        space: [name.removeprefix(f"{space}.") for name, _ in members]
        for space, members in namespaces(entries).items()
    }
    script = (Path(__file__).parents[1] / "theme" / "menu.js").read_text()
    return f"const NAMES = {json.dumps(names)};\n{script}"
