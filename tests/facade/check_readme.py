"""Run the first program of a README with the installed packages; compare what it prints."""

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCKS = r"^```python\n(.*?)^```\n\n```text\n(.*?)^```"
text = Path(sys.argv[1]).read_text(encoding="utf-8")
program, printed = re.search(BLOCKS, text, re.MULTILINE | re.DOTALL).groups()
with contextlib.redirect_stdout(io.StringIO()) as found:
    exec(compile(program, "README", "exec"), {"__name__": "__main__"})
if found.getvalue() != printed:
    sys.exit(f"the README's program printed {found.getvalue()!r} instead of {printed!r}")
