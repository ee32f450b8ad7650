"""Files of trace events in the Chrome JSON format, which Perfetto reads.

Each process of a program writes its own file; `merge` combines them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
"""A trace event, with the keys of the Chrome JSON format."""

_RANK = ".rank"

MICRO = 1e6


def name_event(kind: str, process: int, track: int, name: str) -> Event:
    """Return the event that names a process or, with the kind "thread_name", a track."""
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def span_event(
    name: str, process: int, track: int, start: float, seconds: float, args: Mapping[str, Any]
) -> Event:
    """Return the event of an interval, which starts at a number of microseconds."""
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": track,
        "ts": start,
        "dur": round(seconds * MICRO, 3),
        "args": args,
    }


def arrow_event(phase: str, key: str, process: int, track: int, at: float) -> Event:
    """Return the start ("s") or the end ("f") of an arrow, at a number of microseconds."""
    return {
        "ph": phase,
        "bp": "e",
        "name": "data",
        "cat": "data",
        "id": key,
        "pid": process,
        "tid": track,
        "ts": at,
    }


def rank_file(path: Path, rank: int | None) -> Path:
    """Return the file to which a process writes its part of a trace; None for a single process.

    >>> rank_file(Path("out.json"), 3).name
    'out.rank3.json'
    """
    if rank is None:
        return path
    return path.with_name(f"{path.stem}{_RANK}{rank}{path.suffix}")


def write(path: Path, events: Iterable[Event]) -> None:
    """Write trace events to a file, one per line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    path.write_text(f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n', encoding="utf-8")


def read(path: Path) -> Sequence[Event]:
    """Return the events of a file that `write` wrote."""
    events: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def rank_files(path: Path) -> list[Path]:
    """Return the existing files of the processes of a trace."""
    return sorted(path.parent.glob(f"{path.stem}{_RANK}*{path.suffix}"))


def merge(path: Path) -> int:
    """Combine the files of all processes into one file, and delete them.

    Returns:
        The number of processes whose files were found.
    """
    parts = rank_files(path)
    if parts:
        write(path, [event for part in parts for event in read(part)])
    for part in parts:
        part.unlink()
    return len(parts)
