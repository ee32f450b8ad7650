"""Copy a built site without what browsers ignore: ``python -m reference_pages.compact IN OUT``.

White space between lines is more than a third of the generator's pages.  Pictures within a page
need no namespace, and only one of the generator's two themes is used.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

MOST = 20_000_000
"""Maximum size of the site in bytes."""

KEPT = re.compile(r"(<(pre|textarea|script)\b.*?</\2>)", re.S)
IGNORED = re.compile(r' xmlns="http://www\.w3\.org/2000/svg"|\s*(\n)\s*')
UNUSED = "classic"
"""The folder of the theme that is not used."""


def compact(text: str) -> str:
    r"""Return an HTML page with single line breaks, except where white space is shown.

    Attributes with the namespace of SVG are removed.

    >>> compact("<p>\n\n   a\n</p><pre>\n\n  b</pre>")
    '<p>\na\n</p><pre>\n\n  b</pre>'
    """
    parts = KEPT.split(text)
    # Two groups: each kept element is followed by the name of its tag.
    return "".join(
        part if number % 3 == 1 else IGNORED.sub(r"\1", part)
        for number, part in enumerate(parts)
        if number % 3 != 2
    )


def copy(source: Path, target: Path) -> int:
    """Write the compact site; return its size in bytes.

    Raises:
        SystemExit: the site is larger than `MOST`.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(UNUSED))
    for path in target.rglob("*.html"):
        path.write_text(compact(path.read_text()))
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    if size > MOST:
        sys.exit(f"the site has {size / 1e6:.1f} MB, the limit is {MOST / 1e6:.0f} MB")
    return size


if __name__ == "__main__":
    print(f"{copy(Path(sys.argv[1]), Path(sys.argv[2])) / 1e6:.1f} MB")
