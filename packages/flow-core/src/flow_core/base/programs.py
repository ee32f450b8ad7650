"""Run a user's script in this process as ``python SCRIPT ARGS`` would run it.

Commands that start a process for a script need only `interpreter_options`; commands that run a
script in their own process call `run_as_main`.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import pkgutil
import runpy
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import CodeType, ModuleType, TracebackType
from typing import cast

_WITH_VALUE = "WX"
_LAST = "cm"
_OWN_LINE = "x"


def interpreter_options(argv: Sequence[str] | None = None) -> list[str]:
    """Return the interpreter's options on this process's command line, to start another process.

    Options that are set by environment variables are not included, because a child process inherits
    these variables.

    Args:
        argv: a command line without the interpreter; None for the command line of this process.

    >>> interpreter_options(["-OW", "error", "-Xdev", "train.py", "-O"])
    ['-OW', 'error', '-Xdev']
    >>> interpreter_options(["-Im", "train", "-O"])
    ['-I']
    """
    words = iter(sys.orig_argv[1:] if argv is None else argv)
    options = []
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):  # --check-hash-based-pycs MODE
            options += [word, next(words, "")]
            continue
        letters, rest, is_last = _option(word[1:])
        options += [f"-{letters}"] if letters else []
        if is_last:
            break
        options += [next(words, "")] if rest else []
    return options


def _option(word: str) -> tuple[str, bool, bool]:
    """Return the options of a word to keep, whether a value follows, and whether options end."""
    for position, letter in enumerate(word):
        if letter in _LAST:
            return word[:position].replace(_OWN_LINE, ""), False, True
        if letter in _WITH_VALUE:
            options = word[:position].replace(_OWN_LINE, "") + word[position:]
            return options, position == len(word) - 1, False
    return word.replace(_OWN_LINE, ""), False, False


def leave_own_folder() -> None:
    """Remove the entry of ``sys.path`` that Python added for the running command.

    The entry is the folder of the command's file or, for ``python -m``, the working directory.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    own = sys.argv[0] if sys.argv else ""  # an embedding program may leave it empty
    added = os.path.dirname(os.path.realpath(own)) if spec is None else os.getcwd()
    if not sys.flags.safe_path and sys.path[:1] == [added]:
        del sys.path[0]


def enter_script(script: str, args: Sequence[str]) -> None:
    """Set ``sys.argv`` and ``sys.path`` as Python sets them for a script."""
    sys.argv = [script, *args]
    if pkgutil.get_importer(script) is not None:
        sys.path.insert(0, os.path.abspath(script))
    elif not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))


def run_as_main(script: str, args: Sequence[str], loaded: Collection[str] | None = None) -> None:
    """Run a script as the main module of this process.

    Exceptions of the script propagate; see `hide_own_frames` and `ended_by`.

    Args:
        script: a Python file, or a folder or an archive with a ``__main__.py``.
        loaded: names of the modules that Python itself had loaded.  Modules that were loaded later
            are unloaded if the script has modules of the same names.
    """
    enter_script(script, args)
    if loaded is not None:
        _give_way({*sys.modules} - {*loaded})
    _execute(script)


def hide_own_frames() -> None:
    """Make the interpreter show exceptions of `run_as_main` from the script's first frame on."""
    sys.excepthook = partial(_show, sys.excepthook)


def ended_by(error: BaseException) -> int:
    """Print an exception that ends a script as the interpreter would; return the exit status."""
    if not isinstance(error, SystemExit):
        _show(sys.excepthook, type(error), error, error.__traceback__)
    elif not isinstance(error.code, int | None):
        sys.stderr.write(f"{error.code}\n")
    sys.stderr.flush()
    return status_of(error)


def can_run(script: str) -> bool:
    """Return whether a path is a script that `run_as_main` can run."""
    if not os.path.isdir(script):
        return os.path.isfile(script)
    return os.path.isfile(os.path.join(script, "__main__.py"))


def _execute(script: str) -> None:
    module = ModuleType("__main__")
    vars(module).update({} if sys.version_info >= (3, 14) else {"__annotations__": {}})
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    if pkgutil.get_importer(script) is not None:
        run: Callable[..., object] = vars(runpy)["_run_module_as_main"]  # as Python itself does
        run("__main__", alter_argv=False)
        return
    path = os.path.join(os.getcwd(), script)
    code = _code(module, path)
    exec(code, vars(module))


def _code(module: ModuleType, path: str) -> CodeType:
    """Return the code of a file; give its module the attributes of a main module."""
    module.__file__ = path
    vars(module).update({} if sys.version_info >= (3, 15) else {"__cached__": None})
    if path.endswith(".pyc"):
        compiled = importlib.machinery.SourcelessFileLoader("__main__", path)
        module.__loader__ = compiled
        return cast("CodeType", compiled.get_code("__main__"))
    module.__loader__ = loader = importlib.machinery.SourceFileLoader("__main__", path)
    return compile(loader.get_data(path), path, "exec", dont_inherit=True)


def _give_way(names: Collection[str]) -> None:
    """Unload modules that the first entry of ``sys.path`` shadows."""
    folder = pkgutil.get_importer(sys.path[0]) if sys.path else None
    if not isinstance(folder, importlib.machinery.FileFinder):
        return
    own = {name for name in names if "." not in name and folder.find_spec(name) is not None}
    for name in names:
        if name.partition(".")[0] in own:
            del sys.modules[name]


def _show(
    usual: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Show an exception that ends the script, from the script's first frame on."""
    sys.last_traceback = error.__traceback__ = _of_script(trace)
    usual(kind, error, error.__traceback__)


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback below `_execute`; None for a script that does not compile."""
    part = trace
    while trace is not None:
        if trace.tb_frame.f_code is _execute.__code__:
            part = trace.tb_next
        elif trace.tb_frame.f_code is _code.__code__:
            return None
        trace = trace.tb_next
    return part


def status_of(error: BaseException) -> int:
    """Return the exit status, as a shell reports it, of a process that ends with an exception."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(code, int):
        return int(code is not None)
    return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF  # as C converts a long
