"""Inject faults at random steps of a training program on two processes, and check the outcome.

As a script it prints a table, in minutes per ten faults:
``PYTHONPATH=tests/helpers python PATH/fault_table.py 100 [seed [kind ...]]``.
"""

import contextlib
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import processes
from two_hosts import TwoHosts, two_hosts, why_not

PROGRAM = str(Path(__file__).parent / "restart_program.py")
STEPS = 8
SILENCE = 5.0
KINDS = ("kill", "stop", "raise", "damage", "link", "host", "feeds", "extra", "loop")
OUTSIDE = ("link", "host")
"""Faults that need two hosts, and go on with the one that is left."""

BY_SILENCE = ("stop", *OUTSIDE)
"""Faults that nothing but silence tells; for the others it is long, as a machine may be busy."""

STALL = 10.0
"""Seconds without a finished step, after which the job is stopped: nothing else tells of a loop."""

PATIENCE = 180.0
"""Seconds that a run may take."""

FAILED = r"rank 1 of 2 on .*(died without|has not responded|raised KeyError)"
DIFFER = r"rank \d of 2 on .*(raised FeedsDifferError|raised ProcessesDifferError|diverged)"
MESSAGES = {
    **dict.fromkeys(KINDS, FAILED),
    "feeds": r"rank \d of 2 on .*raised FeedsDifferError",
    "extra": DIFFER,
    "loop": r"no step has finished for 1\d s",
}
WEIGHTS = ("one-weight", "one-bias", "two-weight", "two-bias", "two-weight-v")
ENV = {**os.environ, "DEVICES": "0:0-1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault.

    Attributes:
        kind, step: which fault, and when.
        seconds: from the fault to the message, None without one.
        restarted: whether the program was started again and ended well.
        passed_over: whether a damaged checkpoint was, where there was one to find.
        right: whether the final weights are those of a run without a fault, bit by bit.
        output: all that was said.
    """

    kind: str
    step: int
    seconds: float | None
    restarted: bool
    passed_over: bool
    right: bool
    output: str

    @property
    def good(self) -> bool:
        """Whether all went as it should."""
        return self.seconds is not None and self.restarted and self.passed_over and self.right


def undisturbed(folder: Path) -> None:
    """A run of one process without a fault."""
    processes.run([sys.executable, PROGRAM, str(folder), str(STEPS)], env=ENV, check=True)


def strike(kind: str, step: int, folder: Path, right: Path, hosts: TwoHosts | None) -> Outcome:
    """Runs the program with one fault.

    Args:
        kind, step: which, and when.
        folder: for its checkpoints, empty.
        right: folder of a run without a fault.
        hosts: for faults from outside.
    """
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run"]
    command += ["--silence", str(SILENCE if kind in BY_SILENCE else 60), "--max-restarts", "1"]
    command += ["--stall-limit", str(STALL)] if kind == "loop" else []
    if hosts is not None:
        a, b = hosts.addresses
        where = ["--hosts", f"{a}:1,{b}:1", "--address", a, "--agent", hosts.agent, "--least", "1"]
        command = hosts.on(0, [*command, *where])
    else:
        command += ["-n", "2"]
    command += [PROGRAM, str(folder), str(STEPS), kind, str(step)]
    with processes.Program(command, env=ENV, stdout=processes.DEVNULL) as process:
        outside = threading.Thread(target=_from_outside, args=(kind, folder, hosts, process))
        outside.start()
        late = threading.Timer(processes.scaled(PATIENCE), process.end)
        late.start()
        said, at = _read(process, re.compile("flow-dist: " + MESSAGES[kind]))
        status = process.wait()
        late.cancel()
        outside.join()
    return _outcome(kind, step, folder, right, "".join(said), at, status)


def _read(process: processes.Program, message: re.Pattern[str]) -> tuple[list[str], float | None]:
    """All lines, and when the message came."""
    said: list[str] = []
    at = None
    with process.stderr or contextlib.nullcontext([]) as lines:
        for line in lines:
            said.append(line)
            if at is None and message.match(line):
                at = time.time()
    return said, at


def _from_outside(
    kind: str, folder: Path, hosts: TwoHosts | None, process: processes.Program
) -> None:
    while kind in OUTSIDE and hosts is not None and process.poll() is None:
        if (folder / "struck").exists():
            (folder / "struck").write_text(str(time.time()))
            {"link": lambda: hosts.link("down"), "host": hosts.down}[kind]()
            (folder / "happened").touch()
            return
        time.sleep(0.01)


def _outcome(
    kind: str, step: int, folder: Path, right: Path, said: str, at: float | None, status: int
) -> Outcome:
    struck = folder / "struck"
    seconds = at - float(struck.read_text()) if at is not None and struck.exists() else None
    kept = step - step % 2 - 2 * (kind == "damage")  # the step that it is to go on with
    went_on = f"resuming at step {kept} " in said if kept > 0 else "resuming" not in said
    if kind == "link":  # memory that both hosts share lets training go on until it is noticed
        went_on = "resuming at step" in said or kept == 0
    restarted = status == 0 and "restart 1 of 1" in said and went_on
    passed_over = kind != "damage" or step < 2 or "skipped" in said
    return Outcome(kind, step, seconds, restarted, passed_over, same(folder, right), said)


def same(folder: Path, right: Path) -> bool:
    """Whether the final weights of two runs are the same, bit by bit."""
    try:
        pairs = [[(f / "final" / name / "out") for f in (folder, right)] for name in WEIGHTS]
        return all(one.read_bytes() == other.read_bytes() for one, other in pairs)
    except OSError:
        return False


def table(outcomes: Sequence[Outcome]) -> str:
    """A line per kind of fault, and one for all."""
    lines = ["| fault | number | detected | restarted | weights right | median s | worst s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for kind in (*KINDS, "all"):
        of_kind = [o for o in outcomes if kind in (o.kind, "all")]
        if of_kind:
            lines.append(_row(kind, of_kind))
    return "\n".join(lines)


def _row(kind: str, outcomes: Sequence[Outcome]) -> str:
    seconds = [o.seconds for o in outcomes if o.seconds is not None]
    times = [f"{f(seconds):.2f}" if seconds else "-" for f in (statistics.median, max)]
    restarted = sum(o.restarted and o.passed_over for o in outcomes)
    right = sum(o.right for o in outcomes)
    cells = [kind, len(outcomes), len(seconds), restarted, right, *times]
    return f"| {' | '.join(map(str, cells))} |"


@contextlib.contextmanager
def place(kind: str) -> Iterator[TwoHosts | None]:
    """Where a kind of fault happens."""
    if kind in OUTSIDE:
        with two_hosts() as hosts:
            yield hosts
    else:
        yield None


def run(number: int, seed: int, wanted: Sequence[str] = KINDS) -> list[Outcome]:
    """So many faults of random kinds at random steps."""
    chance = np.random.default_rng(seed)
    reason = why_not()
    kinds = [kind for kind in wanted if reason is None or kind not in OUTSIDE]
    outcomes = []
    with tempfile.TemporaryDirectory() as root:
        undisturbed(Path(root) / "right")
        for n in range(number):
            kind, step = kinds[int(chance.integers(len(kinds)))], int(chance.integers(STEPS))
            with place(kind) as hosts:
                found = strike(kind, step, Path(root) / str(n), Path(root) / "right", hosts)
            outcomes.append(found)
            time_ = "-" if found.seconds is None else f"{found.seconds:.2f} s"
            sys.stderr.write(f"{n} {kind} at step {step}: {time_} good={found.good}\n")
            if not found.good:
                sys.stderr.write(found.output)
    return outcomes


if __name__ == "__main__":
    seed = int(sys.argv[2]) if sys.argv[2:] else random.randrange(1 << 30)
    found = run(int(sys.argv[1]), seed, sys.argv[3:] or KINDS)
    sys.stdout.write(table(found) + "\n")
    sys.exit(0 if all(outcome.good for outcome in found) else 1)
