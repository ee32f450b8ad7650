"""Plans that cuDNN has compiled, kept on disk: the next start of a program reads them.

A file holds what the library serialized, behind a line of JSON which says for what, and a digest
of both.  A file that is cut short, changed or another plan's is told of and written again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

from flow_cuda.cache import Cache

MARK = b"flow-cuda plan 1\n"
"""How files begin; the number changes with what stands behind it."""


class KeptPlans:
    """Plans of one library on one kind of device.

    Args:
        cache: where they are.
        origin: versions and architecture: a plan is good for no others.
    """

    def __init__(self, cache: Cache, *origin: str) -> None:
        self._cache, self._origin = cache, origin

    def read(self, *key: str) -> bytes | None:
        """What the library serialized for a problem and a plan; None where that is not known."""
        content = (*key, *self._origin)
        path = self._cache.place(content)
        try:
            return _checked(path.read_bytes(), content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.doubt(error, *key)
            return None

    def doubt(self, why: object, *key: str) -> None:
        """Says that a file is of no use, and why."""
        path = self._cache.place((*key, *self._origin))
        text = f"a compiled plan of cuDNN's is made again, as {path} cannot be used: {why}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def write(self, data: bytes, *key: str) -> None:
        """Keeps what the library serialized; a disk that takes nothing is told of."""
        content = (*key, *self._origin)
        try:
            self._cache.put(content, lambda path: _write(path, data, content))
        except OSError as error:
            text = f"a compiled plan of cuDNN's is not kept for the next start: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def _write(path: Path, data: bytes, content: tuple[str, ...]) -> None:
    body = json.dumps(content).encode() + b"\n" + data
    path.write_bytes(MARK + hashlib.sha256(body).digest() + body)


def _checked(file: bytes, content: tuple[str, ...]) -> bytes:
    """What the library serialized.

    Raises:
        ValueError: it is not what was written, or was written for something else.
    """
    start = len(MARK)
    digest, body = file[start : start + 32], file[start + 32 :]
    if not file.startswith(MARK) or hashlib.sha256(body).digest() != digest:
        raise ValueError("it is damaged")
    head, _, data = body.partition(b"\n")
    if json.loads(head) != list(content):
        raise ValueError("it is another plan's")
    return data
