"""Checkpoints for restarts, written by all processes in the background.

`Checkpoints` saves at an interval of steps and, after a restart with any number of processes, loads
the last complete checkpoint.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from flow_core.authoring.specs import Region, region_shape
from flow_core.base.errors import CheckpointError, JobError
from flow_core.base.forks import refusal
from flow_core.base.planning import end_script
from flow_core.base.shapes import num_elements
from flow_core.checkpoint import guard, swap
from flow_core.checkpoint.layout import DONE
from flow_core.checkpoint.store import match
from flow_core.frontend.session.session import Session, default_session
from flow_dist.control.watch import WATCH
from flow_dist.recovery.restart_files import (
    Array,
    Parts,
    data_file,
    is_own,
    list_file,
    read_list,
    write_part,
)

LOG = logging.getLogger(__name__)

Held = tuple[str, tuple[int, ...], Region, Array]
"""Name and shape of a variable, a region of the variable, and the values of this region."""

_NAME = re.compile(r"step-\d{12}")


class ProcessGroup(Protocol):
    """The part of `flow_core.device.World`, the processes of a program, that checkpoints use."""

    rank: int
    size: int

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """All-gather a text of each process, in rank order."""


class SingleProcess:
    """The group of a program with one process."""

    rank, size = 0, 1

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """Gather a text from all processes, of which there is one: return ``(text,)``."""
        return (text,)


class Checkpoints:
    """A folder of checkpoints of all variables of the session.

    A save copies this process's parts of the variables and returns; a thread writes the copies.  At
    most one save is pending: the next save waits for the end of the pending one, and raises its
    error.

    Args:
        folder: the folder, shared by all processes; created if it does not exist.
        every: number of steps between two checkpoints.
        keep: number of complete checkpoints to keep.
        patience: seconds to wait for the parts of other processes.

    Raises:
        CheckpointError: the folder is a file.
        JobError: a number is not positive.
    """

    def __init__(
        self, folder: str | Path, *, every: int = 1, keep: int = 2, patience: float = 600.0
    ) -> None:
        if every < 1 or keep < 1:
            raise JobError(
                "checkpoints", found=f"every={every}, keep={keep}", allowed="positive numbers"
            )
        end_script("making a folder of checkpoints")
        self._folder = Path(folder).resolve()
        self._every, self._keep, self._patience = every, keep, patience
        with _explained(f"checkpoints in {folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, "flow-checkpoint")
        self._pending: Future[None] | None = None
        self._process = os.getpid()
        atexit.register(self._close_at_exit)

    # -------------------------------------------------------------------- saving

    def after(self, step: int) -> None:
        """Report the end of a step, numbered from 0; save at the interval."""
        WATCH.steps = step + 1
        if (step + 1) % self._every == 0:
            self.save(step + 1)

    def save(self, step: int) -> None:
        """Save all variables as they are before step ``step``; a collective of all processes.

        The caller waits for the copy of this process's parts, and for the end of the previous save.
        Raises `CheckpointError` if the previous save has failed.
        """
        self.wait()
        session, world = default_session(), _world()
        with session.quiesced():
            job, arrays = _share_of(session, world)
        self._pending = self._thread.submit(self._write, step, world, job, arrays)

    def wait(self) -> None:
        """Wait until the pending save is complete on all processes.

        Raises:
            CheckpointError: the save has failed.
            ForkError: this process is a forked child, whose parent runs the writing thread.
        """
        if self._process != os.getpid():
            raise refusal(f"checkpoints in {self._folder}", self._process)
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Complete the pending save, and end the thread."""
        atexit.unregister(self._close_at_exit)
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _close_at_exit(self) -> None:
        """Close, and fail the process if that raises: at exit, the interpreter ignores errors."""
        if self._process != os.getpid():
            return
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - reported, then the process ends
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stderr.flush()
            os._exit(1)

    def _write(self, step: int, world: ProcessGroup, job: str, arrays: Sequence[Held]) -> None:
        name = f"step-{step:012d}"
        aside = self._folder / f".{name}.saving-{job}"
        with _explained(f"saving {self._folder / name}"):
            try:
                write_part(aside, step, world.rank, world.size, job, arrays)
            except OSError:  # a full disk: free the space of the incomplete file
                data_file(aside, world.rank).unlink(missing_ok=True)
                raise
            if world.rank == 0:
                self._await_parts(aside, world.size)
                with swap.locked(self._folder):
                    self._finish(aside, self._folder / name)
            else:
                self._await_end(aside)

    def _await_parts(self, aside: Path, size: int) -> None:
        """On rank 0, wait until all other ranks have written their parts."""

        def lacks() -> str:
            missing = [n for n in range(size) if not list_file(aside, n).is_file()]
            return f"no parts of ranks {missing}" if missing else ""

        self._await(aside, lacks)
        for rank in range(size):
            read_list(list_file(aside, rank))

    def _await_end(self, aside: Path) -> None:
        """On other ranks, wait until rank 0 has renamed the folder."""
        self._await(aside, lambda: "rank 0 has not finished it" if aside.exists() else "")

    def _await(self, aside: Path, lacks: Callable[[], str]) -> None:
        until = time.monotonic() + self._patience
        nap = 0.002
        while lacking := lacks():
            if time.monotonic() > until:
                raise CheckpointError(
                    f"saving {aside}",
                    found=f"{lacking} after {self._patience:g} s",
                    allowed="a folder that all processes share and can write to",
                )
            time.sleep(nap)
            nap = min(2 * nap, 0.1)

    def _finish(self, aside: Path, path: Path) -> None:
        """Mark the folder as complete, then rename it: the final name always holds all files."""
        (aside / DONE).touch()
        swap.sync_tree(aside)
        if path.exists() and any(path.iterdir()):
            _check_replaceable(path)
        swap.put_in_place(aside, path, _remove)
        for old in self._complete()[: -self._keep]:
            _remove(old)
        for entry in self._folder.glob(".step-*.saving-*"):  # left by processes that were killed
            if entry.name[1 : len(path.name) + 1] <= path.name:
                with suppress(OSError):
                    _remove(entry)

    # ----------------------------------------------------------------- restoring

    def restore(self) -> int:
        """Load the last checkpoint that is complete and undamaged.

        All processes load the same checkpoint: each process verifies a share of the files, and all
        of them skip a damaged checkpoint with a warning.

        Returns:
            The number of the step to resume at; 0 if there is no checkpoint.

        Raises:
            CheckpointError: the checkpoint does not match the variables of the jobs.
        """
        self.wait()
        session, world = default_session(), _world()
        for path in reversed(self._agreed(world)):
            parts, problem = _checked(path, world)
            gathered = world.gather(problem.encode(), f"check {path.name}")
            problems = [text.decode() for text in gathered if text]
            if parts is not None and not problems:
                _load(session, parts)
                _log(world, f"resuming at step {parts.step} from {path}")
                WATCH.steps = parts.step
                return parts.step
            _log(world, f"skipped {path}: {problems[0]}")
        return 0

    def _agreed(self, world: ProcessGroup) -> list[Path]:
        """Return the checkpoints that rank 0 sees, the oldest first."""
        names = json.dumps([path.name for path in self._complete()]).encode()
        return [self._folder / name for name in json.loads(world.gather(names, "checkpoints")[0])]

    def _complete(self) -> list[Path]:
        with _explained(f"looking for checkpoints in {self._folder}"):
            folders = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
            return sorted(path for path in folders if (path / DONE).is_file())


def _check_replaceable(path: Path) -> None:
    """Raise `CheckpointError` if the folder of a step holds files of other programs."""
    names = list(islice(guard.foreign(path, is_own), 5))
    if names:
        raise CheckpointError(
            f"saving {path}",
            found=f"files that do not belong to a checkpoint: {', '.join(map(ascii, names))}",
            hint="move these files away, or save to another folder",
        )


def _remove(old: Path) -> None:
    """Remove a checkpoint, but keep its folder if that holds files of other programs."""
    names = list(islice(guard.foreign(old, is_own), 1))
    if names:
        LOG.warning("kept %s: %a in it does not belong to a checkpoint", old, names[0])
    else:
        shutil.rmtree(old)


def _log(world: ProcessGroup, text: str) -> None:
    """Log a text on rank 0 only."""
    if world.rank == 0:
        LOG.warning("%s", text)


def _checked(path: Path, world: ProcessGroup) -> tuple[Parts | None, str]:
    """Open a checkpoint, verify this process's share, and return it and any problem found."""
    try:
        parts = Parts(path)
        parts.check(world.rank, world.size)
    except CheckpointError as error:
        return None, f"{error.attempted}: {error.found}"
    return parts, ""


def _load(session: Session, parts: Parts) -> None:
    types = session.requested_types()
    if not parts.keys() >= types.keys():  # a job whose variables are missing is left out
        types = session.types()
    match(types, parts, attempted=f"loading {parts.folder}")
    session.load_regions({name: partial(parts.read, name) for name in types})


def _world() -> ProcessGroup:
    world: ProcessGroup | None = default_session().registry.world()
    return world or SingleProcess()


def _share_of(session: Session, world: ProcessGroup) -> tuple[str, list[Held]]:
    """Return the id of this save, and copies of the regions that this process writes."""
    mark = secrets.token_hex(8) if world.rank == 0 else ""
    job = world.gather(mark.encode(), "id of a checkpoint")[0].decode()
    stored = session.stored()
    own = [key for key, writer in _writers(stored).items() if writer == world.rank]
    return job, [
        (name, stored[name].info.type.shape, region, _copy(stored[name], region))
        for name, region in own
    ]


def _writers(stored: Mapping[str, Any]) -> dict[tuple[str, Region], int]:
    """Return the rank that writes each region of the session's variables; equal in all processes.

    Every process knows which processes hold a region.  Regions with the same holders are assigned
    to these holders in turn, the largest region first.
    """
    holders: dict[tuple[str, Region], set[int]] = {}
    for name, variable in stored.items():
        for part in variable.parts.values():
            holders.setdefault((name, part.region), set()).add(part.root)
    turns: Counter[tuple[int, ...]] = Counter()
    writers = {}
    for key in sorted(holders, key=lambda key: (-num_elements(region_shape(key[1])), key)):
        ranks = tuple(sorted(holders[key]))
        writers[key] = ranks[turns[ranks] % len(ranks)]
        turns[ranks] += 1
    return writers


def _copy(variable: Any, region: Region) -> Array:
    """Return a copy of a region that a device of this process holds."""
    parts = variable.parts.values()
    part = next(part for part in parts if part.region == region and part.array is not None)
    copied: Array = part.driver.copy_out(part.array)
    return copied


@contextmanager
def _explained(attempted: str) -> Iterator[None]:
    """Convert file-system errors to `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(attempted, found=str(error)) from error
