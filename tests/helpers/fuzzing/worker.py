"""A process that tries cases under limits of time and memory, and says what came of each."""

from __future__ import annotations

import operator
import os
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flow_core.base.errors import FlowError
from fuzzing.target import Target

NUMBER, TRY, READ, REFUSED, FAILED, MICROSECONDS, PEAK = range(7)
"""Places in the board that a worker shares with its parent."""

MIB = 1 << 20

TRIES = 3
"""How often a case is tried that takes too long: other programs may have delayed it."""


@dataclass(frozen=True)
class Limits:
    """What a case may take.

    Attributes:
        seconds: of the processor's time.
        memory: bytes beyond those that the process has before the case.
    """

    seconds: float = 2.0
    memory: int = 1536 * MIB


@dataclass(frozen=True)
class Failure:
    """A case that broke a rule.

    Attributes:
        target, seed, number: which case.
        what: the rule, with the place in the source where an exception was raised.
        detail: what was seen.
    """

    target: str
    seed: int
    number: int
    what: str
    detail: str = ""

    @property
    def command(self) -> str:
        """The command that tries the case again."""
        return f"nox -s fuzz -- {self.target} --seed {self.seed} --case {self.number}"


@dataclass(frozen=True)
class Chunk:
    """Cases in a row."""

    target: str
    seed: int
    start: int
    stop: int


class Trial:
    """A target with its seeds, ready to take cases."""

    def __init__(self, target: Target, folder: Path, limits: Limits) -> None:
        self.target = target
        self.limits = limits
        self.seeds = list(target.seeds())
        self._read = target.open(folder)
        for number, data in enumerate(self.seeds):
            self._read(data, number)

    def attempt(
        self, seed: int, number: int, told: Callable[[int], None] = lambda attempt: None
    ) -> tuple[str, BaseException | None]:
        """Try a case: "read", "refused", or what is wrong.

        Args:
            seed, number: which case.
            told: called with the number of each try.
        """
        data = self.target.case(self.seeds, seed, number)
        for attempt in range(TRIES):
            told(attempt)
            before = resource.getrusage(resource.RUSAGE_SELF)
            wrong, error = self._outcome(data, number)
            after = resource.getrusage(resource.RUSAGE_SELF)
            user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
            if user + system <= self.limits.seconds:
                return wrong, error
        faults = after.ru_minflt - before.ru_minflt
        times = f"{user:.1f} s, {system:.1f} s in the kernel, {faults} page faults"
        return f"{user + system:.1f} s, over {self.limits.seconds:g} s: {times}", error

    def _outcome(self, data: bytes, number: int) -> tuple[str, BaseException | None]:
        try:
            self._read(data, number)
        except FlowError as error:
            return _judged(error), error
        except Exception as error:
            return _place(error), error
        return "read", None


def _judged(error: FlowError) -> str:
    """A typed error must be printable, and must not stem from memory running out."""
    try:
        str(error).encode()
    except UnicodeEncodeError:
        return "an error text that cannot be printed, " + _place(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "nsufficient memory" in str(cause):
            return "memory ran out, " + _place(cause)
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
    return "refused"


def _place(error: BaseException) -> str:
    """Type of an exception and where it was raised, the innermost frame of ours included."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "flow_" in f.filename or "oneflow" in f.filename] or frames
    last = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
    return f"{type(error).__name__} at {last}"


# ------------------------------------------------------------------------------------- the process


def _status(name: str) -> int:
    """A number of bytes from ``/proc/self/status``; 0 where there is none."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith(name + ":")), "x 0")
    return int(line.split()[1]) * 1024


def _forget_peak() -> None:
    """Let the kernel's record of the largest resident size begin anew."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak() -> int:
    """The largest resident size since `_forget_peak`; ``ru_maxrss`` includes the parent's."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Meter:
    """Peaks of memory of single cases, and the address space as a second limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        space = _status("VmSize")
        if space:
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (space + 2 * limits.memory, hard))
        _forget_peak()
        self._before = _status("VmRSS") or _peak()

    def excess(self) -> tuple[int, bool]:
        """Bytes that the last cases took, and whether one of them took too many."""
        taken = max(0, _peak() - self._before)
        if taken <= self._limits.memory:
            return taken, False
        _forget_peak()
        return taken, True


def work(
    connection: Any,
    board: Any,
    limits: Limits,
    folder: str,
    targets: Mapping[str, Target] | None = None,
) -> None:
    """Try chunks that come over a connection until it is closed.

    Files are written to a folder of the parent's, since most workers end by a signal.
    """
    if targets is None:
        from fuzzing.targets import TARGETS as targets  # a worker that has others needs none

    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # what libraries print about damaged files
    os.dup2(quiet, 2)
    trials: dict[str, Trial] = {}
    while True:
        try:
            chunk = connection.recv()
        except EOFError:
            return
        try:
            if chunk.target not in trials:
                own = Path(tempfile.mkdtemp(dir=folder))
                trials[chunk.target] = Trial(targets[chunk.target], own, limits)
            _try_chunk(connection, board, chunk, trials[chunk.target])
        except Exception:
            connection.send(traceback.format_exc())
            raise
        connection.send(None)


def _try_chunk(connection: Any, board: Any, chunk: Chunk, trial: Trial) -> None:
    began, meter = time.process_time(), Meter(trial.limits)
    for number in range(chunk.start, chunk.stop):
        board[TRY], board[NUMBER] = 0, number
        what, error = trial.attempt(chunk.seed, number, partial(operator.setitem, board, TRY))
        taken, too_much = meter.excess()
        if too_much:
            what = f"{taken // MIB} MiB, over {trial.limits.memory // MIB} MiB"
        board[PEAK] = max(board[PEAK], taken)
        board[{"read": READ, "refused": REFUSED}.get(what, FAILED)] += 1
        if what not in ("read", "refused"):
            detail = f"{type(error).__name__}: {error}"[:500] if error else ""
            connection.send(Failure(chunk.target, chunk.seed, number, what, ascii(detail)))
        board[MICROSECONDS] = int((time.process_time() - began) * 1e6)
