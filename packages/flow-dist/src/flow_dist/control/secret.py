"""The user's secret, which authenticates the ranks of jobs whose launcher passes no token.

The secret is a file, created on first use, from which every job's token is derived.  Hosts that
share the home directory share the secret; the user copies it to other hosts once, like an ssh key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from flow_dist.bootstrap.membership import LaunchError
from flow_dist.control.wire import random_token

TOKEN = "FLOW_DIST_TOKEN"
"""The environment variable that holds the token of a job."""


def secret_file(env: Mapping[str, str]) -> Path:
    """Return the path of the user's secret.

    >>> secret_file({"HOME": "/home/a"}).as_posix()
    '/home/a/.config/flow-dist/secret'
    """
    home = env.get("HOME") or os.path.expanduser("~")
    return Path(env.get("XDG_CONFIG_HOME") or Path(home) / ".config") / "flow-dist" / "secret"


def job_token(env: Mapping[str, str], *about: object) -> str:
    """Return a job's token, from the environment or else derived from the user's secret.

    Args:
        about: identifies the job among the user's jobs; equal in all ranks.

    Raises:
        LaunchError: the secret cannot be read or created, or other users can read it.
    """
    if env.get(TOKEN):
        return env[TOKEN]
    text = "\n".join(["job", *map(str, about)])
    return hmac.new(_secret(secret_file(env)), text.encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> bytes:
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            secret = file.read().strip()
    except OSError as error:
        raise _no_secret(path, str(error)) from error
    if len(secret) < 32:
        raise _no_secret(path, f"{len(secret)} bytes in it")
    return secret


def _make(path: Path) -> None:
    """Create the secret atomically; if several processes try, only one succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".secret-{random_token()[:16]}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{random_token()}\n")
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink()


def _check_private(path: Path, found: os.stat_result) -> None:
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid != os.geteuid():
        raise LaunchError(
            f"reading the secret of your jobs in {path}",
            found=f"mode {stat.S_IMODE(found.st_mode):04o}, owned by user {found.st_uid}",
            allowed=f"mode 0600, owned by user {os.geteuid()}: its readers can join your jobs",
            hint=f"run chmod 600 {path} if no other user can have read it; otherwise delete it",
        )


def _no_secret(path: Path, found: str) -> LaunchError:
    return LaunchError(
        f"reading the secret of your jobs in {path}",
        found=found,
        allowed=f"a file with a secret, or the environment variable {TOKEN}",
        hint=f"export the same {TOKEN}=$(openssl rand -hex 32) on all hosts before starting",
    )
