"""The user's own secret: who has the same one, on whatever host, may join the user's jobs.

Launchers that know nothing of us pass no secret to the ranks that they start.  So there is a file
of the user's, made at the first use, from which each job's token is derived.  Hosts that share the
home directory have the same one; elsewhere it is copied once, as a key of ssh is.
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
from flow_dist.control.wire import fresh

TOKEN = "FLOW_DIST_TOKEN"
"""The variable that is the token of a job."""


def secret_file(env: Mapping[str, str]) -> Path:
    """Where the user's secret is.

    >>> secret_file({"HOME": "/home/a"}).as_posix()
    '/home/a/.config/flow-dist/secret'
    """
    home = env.get("HOME") or os.path.expanduser("~")
    return Path(env.get("XDG_CONFIG_HOME") or Path(home) / ".config") / "flow-dist" / "secret"


def job_token(env: Mapping[str, str], *about: object) -> str:
    """A job's token: what the environment says, else one made of the user's secret.

    Args:
        env: the process's environment.
        about: what tells this job from others of the user, the same in all ranks.

    Raises:
        LaunchError: there is neither, or others can read the secret.
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
            found = file.read().strip()
    except OSError as error:
        raise _no_secret(path, str(error)) from error
    if len(found) < 32:
        raise _no_secret(path, f"{len(found)} bytes in it")
    return found


def _make(path: Path) -> None:
    """Makes it at once and whole; of several processes that come here, one does."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".secret-{fresh()[:16]}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{fresh()}\n")
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink()


def _check_private(path: Path, found: os.stat_result) -> None:
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid != os.geteuid():
        raise LaunchError(
            f"reading the secret of your jobs in {path}",
            found=f"mode {stat.S_IMODE(found.st_mode):04o}, owned by user {found.st_uid}",
            allowed=f"mode 0600, owned by user {os.geteuid()}: who reads it may join your jobs",
            hint=f"chmod 600 {path}, if nobody else can have read it; else delete it",
        )


def _no_secret(path: Path, found: str) -> LaunchError:
    return LaunchError(
        f"reading the secret of your jobs in {path}",
        found=found,
        allowed=f"a file of yours with a secret, or the variable {TOKEN}",
        hint=f"export the same {TOKEN}=$(openssl rand -hex 32) on all hosts before you start",
    )
