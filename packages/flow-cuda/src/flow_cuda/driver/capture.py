"""Split a step into parts for CUDA graph capture, and say why a part cannot be captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.backends import Launch
from flow_cuda.device.launch import Queued


@dataclass(frozen=True, slots=True)
class Part:
    """A contiguous section of a step."""

    queued: tuple[Queued, ...] = ()  # device work; either all of it can be captured or none of it
    calls: tuple[Launch, ...] = ()  # host calls; a part has either these or device work
    reason: str = ""  # why the part is not captured; empty if it is captured

    @property
    def captured(self) -> bool:
        """Whether the part becomes a CUDA graph."""
        return not self.reason


def parts(launches: Sequence[Launch]) -> tuple[Part, ...]:
    """Split a step into as few parts as possible.

    >>> [part.reason for part in parts([print, print])]
    ['runs on the host: print']
    """
    return tuple(_parts(launches))


def _parts(launches: Sequence[Launch]) -> Iterator[Part]:
    """Group consecutive launches of the same kind."""
    run: list[Any] = []
    kind: tuple[bool, str] | None = None
    for launch in launches:
        now = _kind(launch)
        if run and (now[0], bool(now[1])) != (kind and (kind[0], bool(kind[1]))):
            yield _part(run, kind)
            run = []
        if not run:
            kind = now
        run.append(launch)
    if run:
        yield _part(run, kind)


def _kind(launch: Launch) -> tuple[bool, str]:
    """Return whether a launch is device work, and why it cannot be captured (empty if it can)."""
    if isinstance(launch, Queued):
        return True, launch.splits
    function = getattr(launch, "func", launch)
    return False, f"runs on the host: {getattr(function, '__name__', type(function).__name__)}"


def _part(run: Sequence[Any], kind: tuple[bool, str] | None) -> Part:
    device, reason = kind or (True, "")
    return Part(tuple(run), (), reason) if device else Part((), tuple(run), reason)


def describe(cut: Sequence[Part]) -> str:
    """Return the parts of a step as text, one per line.

    >>> print(describe(parts([print])))
    1 call: runs on the host: print
    """
    return "\n".join(_line(part) for part in cut)


def _line(part: Part) -> str:
    if part.captured:
        return f"graph of {len(part.queued)}"
    count = len(part.queued) or len(part.calls)
    noun = "launch" if part.queued else "call"
    plural = "" if count == 1 else "es" if noun == "launch" else "s"
    return f"{count} {noun}{plural}: {part.reason}"
