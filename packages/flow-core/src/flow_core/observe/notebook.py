"""Display of errors of flow in IPython and its notebooks: a few lines, and the rest folded."""

from __future__ import annotations

import traceback
from html import escape
from types import TracebackType
from typing import Any

from flow_core.base.errors import FlowError, raising_line, visible

SHOWN = 5
"""How many lines of an error are shown at first."""


def install(shell: Any) -> None:
    """Show errors of flow in a shell of IPython in few lines.

    Args:
        shell: the `IPython.core.interactiveshell.InteractiveShell`.
    """
    shell.set_custom_exc((FlowError,), _show)


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Show an error; IPython calls this function with itself as the first argument."""
    data, metadata = shell.display_formatter.format(ShortError(error, trace))
    shell.display_pub.publish(data=data, metadata=metadata)


class ShortError:
    """An error as notebooks and terminals show it.

    Args:
        error: the error.
        trace: its traceback.
    """

    def __init__(self, error: BaseException, trace: TracebackType | None) -> None:
        line = raising_line(error)
        text = visible(f"{type(error).__name__}: {error}").splitlines()
        at = [] if line is None or str(line) in text[0] else [f"  at:      {line}"]
        lines = [text[0], *at, *text[1:]]
        self._lines, self._more = lines[:SHOWN], lines[SHOWN:]
        self._trace = visible("".join(traceback.format_exception(type(error), error, trace)))

    def __repr__(self) -> str:
        """Return the first lines, and how to see the rest."""
        return "\n".join([*self._lines, "  (%tb shows everything)"])

    def _repr_html_(self) -> str:
        """Return the first lines, and the rest of the error and its traceback, folded."""
        rest = "\n".join([*self._more, self._trace])
        return (
            f'<pre style="color:#b42318">{escape(chr(10).join(self._lines))}</pre>'
            f"<details><summary>more</summary><pre>{escape(rest)}</pre></details>"
        )
