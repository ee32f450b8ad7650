"""MkDocs hook that generates the reference: a page per public module, and a page of all ops."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from flow_core.cli.op_reports import page as op_page

OPS = "reference/ops.md"
"""The page of all ops."""


def public_modules(root: Path) -> Iterator[tuple[str, str]]:
    """Yield page and dotted name of all modules without a leading underscore in their path.

    A package's own page is the index of its folder; a module ``index`` gets another page name.
    """
    for source in sorted(root.glob("packages/*/src")):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            package = parts[-1] == "__init__"
            name = parts[:-1] if package else parts
            if not any(part.startswith("_") for part in name):
                stem = "index" if package else name[-1].replace("index", "index_module")
                page = (*name, stem) if package else (*name[:-1], stem)
                yield "/".join(("reference", *page)) + ".md", ".".join(name)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation, nested like the modules."""
    tree: dict[str, Any] = {}
    for page, name in public_modules(Path(config.config_file_path).parent):
        *parents, last = name.split(".")
        branch = tree
        for parent in parents:
            branch = branch[parent]
        branch[last] = {"": page} if page.endswith("/index.md") else page
    config.nav = [*(config.nav or []), {"Ops": OPS}, {"Reference": _nav(tree)}]
    return config


def _nav(tree: dict[str, Any]) -> list[Any]:
    """Return the navigation of a folder: its own page first, then its modules."""
    return [
        page if not name else {name: page if isinstance(page, str) else _nav(page)}
        for name, page in tree.items()
    ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the modules and of the ops to those found in docs/."""
    for page, name in public_modules(Path(config.config_file_path).parent):
        content = f"# {name.rpartition('.')[2]}\n\n`{name}`\n\n::: {name}\n"
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, OPS, content=op_page()))
    return files
