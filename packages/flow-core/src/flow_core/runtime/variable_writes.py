"""The count of writes to a session's variables, by which plans notice that variables changed."""

from __future__ import annotations


class VariableWrites:
    """The number of times that variables were overwritten: by assignments, loads and steps.

    As a context manager, an instance counts the writes of its ``with`` block, even of one that
    fails.

    >>> writes = VariableWrites()
    >>> with writes:
    ...     pass
    >>> writes.count
    1
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        """Begin to overwrite variables while no step runs."""

    def __exit__(self, *_: object) -> None:
        self.count += 1
