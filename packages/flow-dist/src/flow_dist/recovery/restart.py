"""Checkpoints to start again from: written aside while training goes on, by all processes.

`Checkpoints` saves every so many steps and finds the last complete one after a restart, whatever
the number of processes is then.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from flow_core.base.errors import CheckpointError, JobError
from flow_core.base.forks import refusal
from flow_core.base.planning import end_script
from flow_core.checkpoint import guard, swap
from flow_core.checkpoint.layout import DONE
from flow_core.checkpoint.store import match
from flow_core.frontend.session.session import Session, default_session
from flow_core.sharding.sbp import Region
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
"""Name and shape of a variable, and a part of it."""

_NAME = re.compile(r"step-\d{12}")


class Rendezvous(Protocol):
    """What checkpoints need of the processes of a program; see `flow_core.device.World`."""

    rank: int
    size: int

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """What each process says, in the order of the ranks, in all processes."""


class Alone:
    """A process that meets nobody."""

    rank, size = 0, 1

    def gather(self, text: bytes, what: str) -> tuple[bytes, ...]:
        """What it says."""
        return (text,)


class Checkpoints:
    """A folder of checkpoints of all variables of the session.

    A save copies this process's parts of the variables and returns; a thread writes them.  One
    save at a time is on its way: the next one waits for it, and raises what went wrong with it.

    Args:
        folder: where, the same for all processes; made when it is not there.
        every: steps between two checkpoints.
        keep: how many complete ones to keep.
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
        """Tells that a step is done, the first one being 0; saves when it is time."""
        WATCH.steps = step + 1
        if (step + 1) % self._every == 0:
            self.save(step + 1)

    def save(self, step: int) -> None:
        """Saves all variables as they are before step ``step``.

        All processes call it at the same place.  What it costs the caller is a copy of the
        process's own parts, and the end of the save before.

        Raises:
            CheckpointError: the save before has failed.
        """
        self.wait()
        session, world = default_session(), _world()
        with session.quiesced():
            job, arrays = _share_of(session, world)
        self._pending = self._thread.submit(self._write, step, world, job, arrays)

    def wait(self) -> None:
        """Waits until nothing is on its way, in no process: the last save is complete.

        Raises:
            CheckpointError: what went wrong with it.
            ForkError: this is a forked process: the thread that writes is its parent's.
        """
        if self._process != os.getpid():
            raise refusal(f"checkpoints in {self._folder}", self._process)
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finishes what is on its way and ends the thread."""
        atexit.unregister(self._close_at_exit)
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _close_at_exit(self) -> None:
        """The same; the interpreter would ignore an exception here and report success."""
        if self._process != os.getpid():
            return
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - shown, and the end of the process
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stderr.flush()
            os._exit(1)

    def _write(self, step: int, world: Rendezvous, job: str, arrays: Sequence[Held]) -> None:
        name = f"step-{step:012d}"
        aside = self._folder / f".{name}.saving-{job}"
        with _explained(f"saving {self._folder / name}"):
            try:
                write_part(aside, step, world.rank, world.size, job, arrays)
            except OSError:  # a disk that is full shall not be so because of what is half written
                data_file(aside, world.rank).unlink(missing_ok=True)
                raise
            if world.rank == 0:
                self._await_parts(aside, world.size)
                with swap.locked(self._folder):
                    self._finish(aside, self._folder / name)
            else:
                self._await_end(aside)

    def _await_parts(self, aside: Path, size: int) -> None:
        """The first process: until all others have written theirs."""

        def lacks() -> str:
            missing = [n for n in range(size) if not list_file(aside, n).is_file()]
            return f"no parts of ranks {missing}" if missing else ""

        self._await(aside, lacks)
        for rank in range(size):
            read_list(list_file(aside, rank))

    def _await_end(self, aside: Path) -> None:
        """The others: until the first one has given the folder its name."""
        self._await(aside, lambda: "rank 0 has not finished it" if aside.exists() else "")

    def _await(self, aside: Path, lacks: Callable[[], str]) -> None:
        until = time.monotonic() + self._patience
        nap = 0.002
        while lacking := lacks():
            if time.monotonic() > until:
                raise CheckpointError(
                    f"saving {aside}",
                    found=f"{lacking} after {self._patience:g} s",
                    allowed="a folder that all processes share, and write to",
                )
            time.sleep(nap)
            nap = min(2 * nap, 0.1)

    def _finish(self, aside: Path, path: Path) -> None:
        """The mark, then the name: at no moment does a folder of that name lack anything."""
        (aside / DONE).touch()
        swap.sync_tree(aside)
        if path.exists() and any(path.iterdir()):
            _check_replaceable(path)
        swap.put_in_place(aside, path, _remove)
        for old in self._complete()[: -self._keep]:
            _remove(old)
        for entry in self._folder.glob(".step-*.saving-*"):  # of processes that were killed
            if entry.name[1 : len(path.name) + 1] <= path.name:
                with suppress(OSError):
                    _remove(entry)

    # ----------------------------------------------------------------- restoring

    def restore(self) -> int:
        """Loads the last checkpoint that is complete and whole; gives the step to go on with.

        All processes take the same one: each looks at a share of the files, and one that is
        damaged is passed over with a warning.

        Returns:
            The number of the step that comes next; 0 when there is nothing to load.

        Raises:
            CheckpointError: it does not fit the variables of the jobs.
        """
        self.wait()
        session, world = default_session(), _world()
        for path in reversed(self._agreed(world)):
            found, problem = _checked(path, world)
            said = [text.decode() for text in world.gather(problem.encode(), f"check {path.name}")]
            problems = [text for text in said if text]
            if found is not None and not problems:
                _load(session, found)
                _log(world, f"going on at step {found.step} from {path}")
                WATCH.steps = found.step
                return found.step
            _log(world, f"passed over {path}: {problems[0]}")
        return 0

    def _agreed(self, world: Rendezvous) -> list[Path]:
        """The checkpoints as the first process sees them, the oldest first."""
        names = json.dumps([path.name for path in self._complete()]).encode()
        return [self._folder / name for name in json.loads(world.gather(names, "checkpoints")[0])]

    def _complete(self) -> list[Path]:
        with _explained(f"looking for checkpoints in {self._folder}"):
            found = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
            return sorted(path for path in found if (path / DONE).is_file())


def _check_replaceable(path: Path) -> None:
    """Raise `CheckpointError` where a folder of a step's name holds anything but a checkpoint."""
    names = list(islice(guard.foreign(path, is_own), 5))
    if names:
        raise CheckpointError(
            f"saving {path}",
            found=f"files there that are of no checkpoint: {', '.join(map(ascii, names))}",
            hint="move them away, or save to another folder",
        )


def _remove(old: Path) -> None:
    """Remove a checkpoint and nothing else: one with other files in it stays."""
    names = list(islice(guard.foreign(old, is_own), 1))
    if names:
        LOG.warning("kept %s, as %a in it is of no checkpoint", old, names[0])
    else:
        shutil.rmtree(old)


def _log(world: Rendezvous, text: str) -> None:
    """One line, as all processes have come to the same end."""
    if world.rank == 0:
        LOG.warning("%s", text)


def _checked(path: Path, world: Rendezvous) -> tuple[Parts | None, str]:
    """A checkpoint, and what is wrong with this process's share of its files."""
    try:
        found = Parts(path)
        found.check(world.rank, world.size)
    except CheckpointError as error:
        return None, f"{error.attempted}: {error.found}"
    return found, ""


def _load(session: Session, found: Parts) -> None:
    wanted = session.types()
    match(wanted, found, attempted=f"loading {found.folder}")
    session.assign(_Wanted(found, wanted))


class _Wanted(dict[str, Array]):
    """The variables that are wanted, each read when it is asked for, one at a time."""

    def __init__(self, found: Parts, names: Any) -> None:
        super().__init__(dict.fromkeys(names))
        self._found = found

    def items(self) -> Any:
        return ((name, self._found[name]) for name in self)


def _world() -> Rendezvous:
    world: Rendezvous | None = default_session().registry.world()
    return world or Alone()


def _share_of(session: Session, world: Rendezvous) -> tuple[str, list[Held]]:
    """A name for this save, and copies of the parts that this process is to write.

    What several processes hold is written by one of them, in turn.
    """
    held = {(name, part.region): part for name, part in _parts(session)}
    own = json.dumps([secrets.token_hex(8), [list(key) for key in held]])
    said = [json.loads(text) for text in world.gather(own.encode(), "parts of a checkpoint")]
    holders: dict[str, list[int]] = {}
    for rank, (_, keys) in enumerate(said):
        for key in keys:
            holders.setdefault(json.dumps(key), []).append(rank)
    writers = {
        key: ranks[number % len(ranks)]
        for number, (key, ranks) in enumerate(sorted(holders.items()))
    }
    stored = session.stored()
    arrays = [
        (name, stored[name].info.type.shape, region, part.driver.copy_out(part.array))
        for (name, region), part in held.items()
        if writers[json.dumps([name, region])] == world.rank
    ]
    return said[0][0], arrays


def _parts(session: Session) -> Iterator[tuple[str, Any]]:
    for name, stored in session.stored().items():
        for part in stored.parts.values():
            if part.array is not None:  # that of another process
                yield name, part


@contextmanager
def _explained(attempted: str) -> Iterator[None]:
    """Turns errors of the file system into ours."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(attempted, found=str(error)) from error
