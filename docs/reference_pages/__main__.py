"""Write the sources of the site: ``python -m reference_pages FOLDER``."""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from flow_core.cli.op_reports import page as op_page
from reference_pages import modules, public
from reference_pages.names import entries

DOCS = Path(__file__).parents[1]
CODE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)$|\[[^\]]*\]\([^)]*\)|^#.*$", re.M | re.S)
NAME = re.compile(r"`(flow(?:\.\w+)+)(\(\))?`")
REFERENCE = re.compile(r"^  - Reference: .*\n", re.M)
"""The line of mkdocs.yml that is replaced by the navigation of the reference."""

DECISION = re.compile(r"^ *- adr/\d.*\n", re.M)
"""The pages of decisions, which their index lists; the navigation would repeat them on each."""


def write(folder: Path) -> int:
    """Write the site's configuration and all pages into a new folder; return the page count."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        DOCS, folder / "docs", ignore=shutil.ignore_patterns("*.py", "*.toml", "*.txt", "__*")
    )
    found = entries()
    targets = {n: public.page_of(n) for e in found for n in (e.name, *e.others)}
    generated = {**dict(public.pages(found)), **dict(modules.pages())}
    generated["reference/ops.md"] = op_page()
    for name, text in generated.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "docs" / "theme" / "menu.js").write_text(public.menu(found))
    pages = list((folder / "docs").rglob("*.md"))
    for path in pages:
        name = path.relative_to(folder / "docs").as_posix()
        path.write_text(linked(path.read_text(), name, targets))
    site = (DOCS.parent / "mkdocs.yml").read_text()
    lines = "".join(f"  {line}\n" for line in navigation(sorted(public.namespaces(found))))
    (folder / "mkdocs.yml").write_text(DECISION.sub("", REFERENCE.sub(lines, site)))
    return len(pages)


def linked(text: str, page: str, targets: Mapping[str, str]) -> str:
    """Turn the public names in a page into links to their pages.

    Code blocks, headings and existing links are left as they are.
    """

    def link(match: re.Match[str]) -> str:
        target = targets.get(match[1])
        if target is None or target == page:
            return match[0]
        return f"[{match[0]}]({posixpath.relpath(target, posixpath.dirname(page))})"

    pieces, start = [], 0
    for fixed in CODE.finditer(text):
        pieces += [NAME.sub(link, text[start : fixed.start()]), fixed[0]]
        start = fixed.end()
    return "".join((*pieces, NAME.sub(link, text[start:])))


def navigation(spaces: list[str]) -> Iterator[str]:
    """Yield the lines of the reference's navigation.

    The pages of the functions are not in the navigation, which every page would repeat.
    """
    yield "- Reference:"
    yield "    - All names: reference/index.md"
    yield from (f"    - {space}: reference/{space}/index.md" for space in spaces)
    yield "    - flow_fit: reference/flow_fit.md"
    yield "    - flow_rules: reference/flow_rules.md"
    yield "    - flow_zoo: reference/flow_zoo.md"
    yield "    - Element types: reference/dtypes.md"
    yield "    - Ops: reference/ops.md"
    yield "    - Errors: reference/errors.md"
    yield "    - API for plugins: reference/plugins/index.md"
    yield "    - Modules: reference/internals/index.md"


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]))} pages")
