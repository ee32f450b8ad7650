"""Error messages about parts of the API whose optional package is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flow_core.base.errors import install_command


def missing(piece: str, package: str) -> str:
    """Return the message about a part of the API whose package is not installed."""
    distribution = package.replace("_", "-")
    return (
        f"oneflow.{piece} is provided by the optional package {distribution}: "
        f"{install_command(distribution)}"
    )


@contextmanager
def piece(name: str, package: str) -> Iterator[None]:
    """If importing a part of the API fails, raise an error that names the package to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(missing(name, package), name=f"oneflow.{name}") from None
