"""Optional pieces of the API: what to say when one is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def missing(piece: str, package: str) -> str:
    """The message about a piece whose package is not installed."""
    distribution = package.replace("_", "-")
    return (
        f"oneflow.{piece} is provided by the optional package {distribution}: uv add {distribution}"
    )


@contextmanager
def piece(name: str, package: str) -> Iterator[None]:
    """Says which package provides a piece when that very package is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(missing(name, package), name=f"oneflow.{name}") from None
