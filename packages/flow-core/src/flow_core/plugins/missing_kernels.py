"""Ops of a job for which no kernel was found, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from flow_core.base.errors import KernelNotFoundError, KernelUser, MissingKernel, SourceLine

HOST = "cpu"
"""The device type that runs ops without a kernel for their own devices, if a setting allows it."""

SHOWN = 5
"""Maximum number of ops that the message lists per missing kernel."""

_FIELD, _NESTED = "\n           ", "\n             "


def lookup_error(
    missing: MissingKernel, hint: str, at: SourceLine | None = None
) -> KernelNotFoundError:
    """Return the error of a single lookup."""
    error = KernelNotFoundError(
        f"finding a kernel for op {missing.op!r} on device type {missing.device_type!r}",
        at=at,
        found=_FIELD.join((missing.types, *missing.why)),
        allowed=f"device types with a kernel: {', '.join(missing.elsewhere) or 'none'}",
        hint=hint,
    )
    error.missing = (missing,)
    return error


def job_error(found: Sequence[tuple[KernelUser, KernelNotFoundError]]) -> KernelNotFoundError:
    """Return one error for all ops of a job that have no kernel.

    Args:
        found: each such op, with the error of its kernel lookup; not empty.
    """
    missing = tuple(_grouped(found))
    kinds = ", ".join(sorted({repr(m.device_type) for m in missing}))
    first = missing[0].users[0]
    count = f"{len(missing)} kernel{'s' * (len(missing) > 1)}"
    elsewhere = (f"{m.op}: {', '.join(m.elsewhere) or 'none'}" for m in missing)
    error = KernelNotFoundError(
        f"finding the kernels of a job on device type {kinds}",
        at=first.line,
        found=_FIELD.join((f"{count} missing:", *map(_text, missing))),
        allowed="device types with a kernel: " + "; ".join(dict.fromkeys(elsewhere)),
        hint=_hint(missing, found[0][1].hint or ""),
    )
    error.missing = missing
    return error


def _hint(missing: Sequence[MissingKernel], general: str) -> str:
    """Return the general hint, preceded by the host fallback if the host has all kernels."""
    if not all(HOST in m.elsewhere for m in missing):
        return general
    fallback = 'function_config.host_fallback("warn"), or FLOW_HOST_FALLBACK=warn'
    return f"run these ops on the CPU: {fallback}; or {general}"


def _grouped(found: Iterable[tuple[KernelUser, KernelNotFoundError]]) -> Iterator[MissingKernel]:
    """Yield each missing kernel once, with all of its users."""
    users: dict[MissingKernel, dict[KernelUser, None]] = {}
    for user, error in found:
        for missing in error.missing:
            users.setdefault(missing, {})[user] = None
    for missing, ops in users.items():
        yield replace(missing, users=tuple(ops))


def _text(missing: MissingKernel) -> str:
    lines = [f"{missing.op} {missing.types} on {missing.device_type}"]
    lines += missing.why
    lines += [line for user in missing.users[:SHOWN] for line in _user_lines(user)]
    if len(missing.users) > SHOWN:
        lines.append(f"and {len(missing.users) - SHOWN} more ops")
    return _NESTED.join(lines)


def _user_lines(user: KernelUser) -> Iterator[str]:
    yield _located(f"op {user.name!r}", user.line)
    for type_, name, line in user.members:
        yield "  " + _located(f"merged {type_} {name!r}", line)


def _located(text: str, line: SourceLine | None) -> str:
    return text if line is None else f"{text} at {line}"
