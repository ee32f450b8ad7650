"""Fail each test that leaves a process, thread, socket, shared memory or temporary file behind.

The same holds for a changed main module, ``sys.argv`` or ``sys.path``, which commands that run a
script in their own process replace, environment variable, working folder or warning filter.

A pytest plugin, which the root ``conftest.py`` loads.  What a fixture of a module or session makes
may stay until that fixture ends.  Leftovers are removed, so that they cannot disturb other tests.
Where /proc is missing, only threads and temporary files are checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from processes import scaled

PATIENCE = 5.0
"""Seconds, on an idle machine, in which processes told to end may do so."""

LASTING_FILES = (
    "pytest-of-",  # of pytest, which removes it
    "flow-data-",  # copies of remote files, which flow-data removes at exit
)
"""Name prefixes of files in the temporary folder that outlast a test."""

LASTING_THREADS = re.compile(
    r"MainThread|pytest_timeout .*|Dummy-\d+"
    r"|.*\(do_work\)"  # execnet's, which serves the workers of pytest-xdist
    r"|(flow-stream_|flow-data-|flow-cuda-staging_)\d+|fsspecIO"  # pools of the process
    r"|flow-queued_\d+"  # of test devices, which end with their drivers
    r"|flow-nccl-join"  # waits in NCCL, which nothing can interrupt
    r"|IPythonHistorySavingThread"
)
"""Names of threads that outlast a test."""

LASTING_FILTERS = re.compile(r".*(numpy|IPython).*")
"""Warning filters that packages add when they are first imported."""

LASTING_PROCESSES: set[str] = set()
"""Identifiers of processes that fixtures of the session have started."""

STATE = ("program", "environment", "folder", "filters")
"""Attributes of `Held` of which nothing may be missing either; the end of a thread is welcome."""

_SHARED_MEMORY = Path("/dev/shm")
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl


@dataclass(frozen=True)
class Held:
    """What a test process holds, each item as text.

    Attributes:
        processes: child processes and adopted orphans, by "pid command".
        threads: threads of Python, by "name ident".
        sockets: open sockets, by "descriptor socket".
        segments: files in shared memory that no other process uses.
        files: entries of the temporary folder.
        program: the main module, the arguments, and the entries of ``sys.path``.
        environment: environment variables, by "name=value", but for those that pytest sets.
        folder: the working folder.
        filters: the warning filters, which pytest itself restores, but for `LASTING_FILTERS`.
    """

    processes: frozenset[str] = frozenset()
    threads: frozenset[str] = frozenset()
    sockets: frozenset[str] = frozenset()
    segments: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    program: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    folder: frozenset[str] = frozenset()
    filters: frozenset[str] = frozenset()

    def __or__(self, other: Held) -> Held:
        return Held(*(getattr(self, f.name) | getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Held) -> Held:
        return Held(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def state(self) -> Held:
        """Return the attributes in `STATE` alone."""
        return Held(**{name: getattr(self, name) for name in STATE})

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def __str__(self) -> str:
        kinds = {f.name: sorted(getattr(self, f.name)) for f in fields(self)}
        return "; ".join(f"{kind} {', '.join(items)}" for kind, items in kinds.items() if items)


def held() -> Held:
    """Return what this process holds now."""
    return Held(
        _processes(), _threads(), _sockets(), _segments(), _files(),
        _program(), _environment(), _folder(), _filters(),
    )  # fmt: skip


def _processes() -> frozenset[str]:
    pids = []
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (AttributeError, ChildProcessError):  # no child: spares a file per thread
        return frozenset()
    for task in _entries("/proc/self/task"):
        with contextlib.suppress(OSError):
            pids += Path(f"/proc/self/task/{task}/children").read_text().split()
    return frozenset(filter(None, map(_command, set(pids) - LASTING_PROCESSES)))


def _command(pid: str) -> str:
    """Return a child's pid and command; an empty text if it has ended or lasts by design.

    The command line is empty for a moment while a program starts.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        _, _, state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return ""
    lasts = "multiprocessing.resource_tracker" in words or state.startswith("Z")
    return "" if lasts else f"{pid} {words[:160] or 'a program that starts'}"


def _threads() -> frozenset[str]:
    return frozenset(
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if not LASTING_THREADS.fullmatch(thread.name)
    )


def _sockets() -> frozenset[str]:
    links = []
    for number in _entries("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return frozenset(link for link in links if " socket:" in link)


def _segments() -> frozenset[str]:
    """Return the names of shared memory; folders are of programs that prefer this file system."""
    names = _entries(_SHARED_MEMORY)
    return frozenset(name for name in names if not (_SHARED_MEMORY / name).is_dir())


def _files() -> frozenset[str]:
    names = _entries(tempfile.gettempdir())
    return frozenset(name for name in names if not name.startswith(LASTING_FILES))


def _program() -> frozenset[str]:
    main = sys.modules["__main__"]
    origin = getattr(main, "__file__", None)
    entries = (f"sys.path {entry}" for entry in sys.path)
    return frozenset((f"__main__ {origin} {id(main)}", f"sys.argv {sys.argv}", *entries))


def _environment() -> frozenset[str]:
    variables = os.environ.items()
    return frozenset(f"{k}={v}" for k, v in variables if not k.startswith("PYTEST_"))


def _folder() -> frozenset[str]:
    try:
        return frozenset({os.getcwd()})
    except FileNotFoundError:
        return frozenset({"a folder that has been deleted"})


def _filters() -> frozenset[str]:
    texts = map(str, warnings.filters)
    return frozenset(text for text in texts if not LASTING_FILTERS.fullmatch(text))


def _entries(folder: str | Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _in_use(segment: str) -> bool:
    """Return whether a living process has opened or mapped a file of shared memory."""
    path = str(_SHARED_MEMORY / segment)
    for pid in filter(str.isdigit, _entries("/proc")):
        with contextlib.suppress(OSError):
            if path in Path(f"/proc/{pid}/maps").read_text():
                return True
        for number in _entries(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}") == path:
                    return True
    return False


def _changes(before: Held, of_fixtures: Held) -> Held:
    """Return what a test has added to what fixtures hold, and what is missing of the state."""
    now = held()
    missing = before.state() - now - of_fixtures
    texts = {name: frozenset(f"no {x}" for x in getattr(missing, name)) for name in STATE}
    return now - before - of_fixtures | Held(**texts)


def _left(before: Held, of_fixtures: Held, waits_for_files: bool) -> Held:
    """Return what has changed since, and does not end by itself within `PATIENCE`."""
    until, none = time.monotonic() + scaled(PATIENCE), frozenset[str]()
    while True:
        left = _changes(before, of_fixtures)
        left = replace(left, segments=frozenset(n for n in left.segments if not _in_use(n)))
        awaited = left - left.state()
        awaited = awaited if waits_for_files else replace(awaited, files=none)
        if not awaited or time.monotonic() > until:
            return left
        started = time.monotonic()
        gc.collect()  # removes what only cycles hold, and blames this test for its warnings
        time.sleep(max(0.01, time.monotonic() - started))  # lets other threads run


def _remove(left: Held) -> None:
    """Kill processes and delete files."""
    for text in left.processes:
        pid = int(text.split()[0])
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    paths = [_SHARED_MEMORY / name for name in left.segments]
    for path in [*paths, *(Path(tempfile.gettempdir(), name) for name in left.files)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Leftovers:
    """The hooks: compare what the process holds before and after each test."""

    def __init__(self) -> None:
        self._before = Held()
        self._of_fixtures = Held()
        self._keep()

    def _keep(self) -> None:
        self._program = sys.modules["__main__"], sys.argv[:], sys.path[:]
        self._variables, self._folder = dict(os.environ), _folder()

    def _restore(self) -> None:
        sys.modules["__main__"], sys.argv[:], sys.path[:] = self._program
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update(self._variables)
        with contextlib.suppress(FileNotFoundError):
            os.chdir(*self._folder)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Keep modules and tests, which all live until the end, out of garbage collections."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()
            gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Note what fixtures hold for longer than a test."""
        if fixturedef.scope == "function":
            return (yield)
        before = held()
        try:
            return (yield)
        finally:
            now = held()
            # The fixture may restore the state later.
            self._of_fixtures |= (now - before) | (before - now).state()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Note what exists before a test."""
        self._before = held()
        self._keep()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Remove what a test has left, and fail it; examples of docstrings need not clean up."""
        result = yield
        is_example = isinstance(item, pytest.DoctestItem)
        left = _left(self._before, self._of_fixtures, waits_for_files=not is_example)
        if left:
            _remove(left)
            if left.state():
                self._restore()
            if not is_example:
                pytest.fail(f"the test has left {left}", pytrace=False)
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Give this process a temporary folder of its own, and its orphaned grandchildren."""
    folder = tempfile.mkdtemp(prefix="flow-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    previous = os.environ.get("TMPDIR")
    config.add_cleanup(lambda: _set_folder(previous))
    _set_folder(folder)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    config.pluginmanager.register(Leftovers())


def _set_folder(folder: str | None) -> None:
    tempfile.tempdir = folder
    if folder is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = folder
