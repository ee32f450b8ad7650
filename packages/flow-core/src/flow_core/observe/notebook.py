"""Display in IPython and its notebooks: errors in a few lines, and progress bars."""

from __future__ import annotations

import itertools
import traceback
from html import escape
from types import TracebackType
from typing import Any

from flow_core.base.errors import FlowError, raising_line, visible
from flow_core.frontend.job.progress import STAGES, listeners

SHOWN = 5
"""How many lines of an error a terminal shows."""


def install(shell: Any) -> None:
    """Show errors of flow in few lines and, in a notebook, the stages of jobs as a progress bar.

    Args:
        shell: the `IPython.core.interactiveshell.InteractiveShell`.
    """
    shell.set_custom_exc((FlowError,), _show)
    if hasattr(shell, "kernel"):
        listeners[:] = [bar for bar in listeners if not isinstance(bar, ProgressBar)]
        listeners.append(ProgressBar(shell))


class ProgressBar:
    """A bar in the output of a cell while a job is traced, compiled and bound."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._numbers = itertools.count()
        self._name = ""

    def __call__(self, job: str, stage: str, begins: bool) -> None:
        """Show that a stage of a job begins; remove the bar when the stage ends."""
        if not begins:
            self._publish("", update=True)
            return
        self._name = f"flow-progress-{next(self._numbers)}"
        self._publish(
            f'<progress value="{STAGES.index(stage)}" max="{len(STAGES)}"></progress> '
            f"{escape(stage)} job {escape(repr(job))}",
            update=False,
        )

    def _publish(self, html: str, update: bool) -> None:
        self._shell.display_pub.publish(
            data={"text/html": html, "text/plain": ""},
            transient={"display_id": self._name},
            update=update,
        )


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Show an error; IPython calls this function with itself as the first argument."""
    short = ShortError(error, trace)
    if not hasattr(shell, "kernel"):
        data, metadata = shell.display_formatter.format(short)
        shell.display_pub.publish(data=data, metadata=metadata)
        return
    # an output of type "error", which programs that run notebooks report
    shell._showtraceback(kind, error, short.lines)
    data = {"text/html": short.folded(), "text/plain": ShortError.MORE}
    shell.display_pub.publish(data=data)


class ShortError:
    """An error as notebooks and terminals show it."""

    MORE = "(%tb shows everything)"

    def __init__(self, error: BaseException, trace: TracebackType | None) -> None:
        line = raising_line(error)
        text = visible(f"{type(error).__name__}: {error}").splitlines()
        at = [] if line is None or str(line) in text[0] else [f"  at:      {line}"]
        self.lines = [text[0], *at, *text[1:]]  # text of the error, with the line of the program
        self._trace = visible("".join(traceback.format_exception(type(error), error, trace)))

    def __repr__(self) -> str:
        """Return the first lines, and how to see the rest."""
        return "\n".join([*self.lines[:SHOWN], f"  {self.MORE}"])

    def folded(self) -> str:
        return f"<details><summary>more</summary><pre>{escape(self._trace)}</pre></details>"
