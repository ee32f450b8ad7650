"""``python -m flow_dist.launch_rank SCRIPT ARGS``: what ``flow-dist run`` starts on every rank.

The script runs as ``python SCRIPT ARGS`` would run it, in a process that has joined the job, dies
with its launcher, and tells how it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import NoReturn

from flow_dist import control
from flow_dist.chance import seed_alike
from flow_dist.launch_process import die_with_parent
from flow_dist.output import print_whole_lines
from flow_dist.secret import TOKEN


def main(argv: Sequence[str]) -> NoReturn:
    """Runs a script as a rank and ends the interpreter with its status."""
    die_with_parent()
    print_whole_lines()
    if token := os.environ.get(TOKEN):
        seed_alike(token)
    client = control.join()
    status = 0
    try:
        run(argv[0], argv[1:])
    except SystemExit as error:
        status = status_of(error)
    except BaseException as error:  # noqa: BLE001 - the script's: shown and reported
        error.__traceback__ = _of_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    if client is not None and status != 0:
        client.bye(status)
    sys.exit(status)


def run(script: str, args: Sequence[str]) -> None:
    """Runs a script as the main module."""
    module = ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    exec(code, module.__dict__)


def status_of(error: SystemExit) -> int:
    """The status that Python would end with."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0)  # unittest ends with True
    sys.stderr.write(f"{error.code}\n")
    return 1


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module; all of it for a script that was not begun."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    return inner or trace


if __name__ == "__main__":
    main(sys.argv[1:])
