"""Command lines and environments of the launchers of MPICH and Open MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_dist.bootstrap.membership import INSTALL_MPI, LaunchError

MPICH, OPEN_MPI = "MPICH", "Open MPI"
_MARKS = {"HYDRA": MPICH, "Intel(R) MPI": MPICH, "Open MPI": OPEN_MPI, "OpenRTE": OPEN_MPI}
"""Texts in the output of ``mpiexec --version``, and the MPI library to which each belongs."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host and the number of processes to start on it.

    >>> Host.parse_all("a:2,10.0.0.2")
    (Host(name='a', slots=2), Host(name='10.0.0.2', slots=1))
    """

    name: str
    slots: int = 1

    @classmethod
    def parse_all(cls, text: str) -> tuple[Host, ...]:
        """Parse hosts of the form ``a:2,b:2``.

        Raises `LaunchError` if the text has another form, or names a host twice.
        """
        hosts = tuple(cls._parse(part, text) for part in text.split(",")) if text else ()
        if len({host.name for host in hosts}) < len(hosts):
            raise LaunchError(f"reading the hosts {text!r}", found="a host twice")
        return hosts

    @classmethod
    def _parse(cls, part: str, text: str) -> Host:
        name, colon, slots = part.strip().partition(":")
        number = slots if colon else "1"
        right = name and not name.startswith("-") and number.isascii() and number.isdigit()
        if not right or int(number) == 0:
            raise LaunchError(
                f"reading the hosts {text!r}", found=repr(part), allowed="host:slots, as in a:2,b:2"
            )
        return cls(name, int(number))

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


@dataclass(frozen=True, slots=True)
class Launcher:
    """An ``mpiexec`` program."""

    path: str
    kind: str  # "MPICH" or "Open MPI"

    @classmethod
    def find(cls, path: str | None = None) -> Launcher:
        """Return the launcher at a path or, by default, beside this Python or else on PATH.

        Raises `LaunchError` if there is no launcher, or its kind is unknown.
        """
        folder = os.path.dirname(sys.executable)
        mpiexec = path or shutil.which("mpiexec", path=folder) or shutil.which("mpiexec")
        if mpiexec is None:
            raise LaunchError(
                "looking for mpiexec",
                found=f"none in {folder} or on PATH",
                allowed="the launcher of MPICH or Open MPI",
                hint=INSTALL_MPI,
            )
        return cls(mpiexec, _kind(mpiexec))

    @property
    def variables(self) -> str:
        """Name of the set of environment variables from which ranks read their membership."""
        return {MPICH: "mpich", OPEN_MPI: "openmpi"}[self.kind]

    def command(
        self,
        size: int,
        hosts: Sequence[Host],  # where to run; this host if empty
        program: Sequence[str],
        *,
        agent: str | None = None,  # program to use in place of ssh
        address: str | None = None,  # address of this host that other hosts can reach
        label: bool = False,  # whether to prefix each line of output with the rank that prints it
        forwarded: Sequence[str] = (),  # names of environment variables to pass to all ranks
    ) -> list[str]:
        """Return the command line that runs a program on all ranks."""
        table = {MPICH: self._mpich, OPEN_MPI: self._open_mpi}
        options = table[self.kind](",".join(map(str, hosts)), agent, address, label, forwarded)
        return [self.path, *options, "-n", str(size), *program]

    def _mpich(
        self, hosts: str, agent: str | None, address: str | None, label: bool, names: Sequence[str]
    ) -> list[str]:
        options = ["-launcher", "ssh", "-launcher-exec", agent] if agent else []
        options += ["-localhost", address] if hosts and address else []
        options += ["-hosts", hosts] if hosts else []
        return options + (["-prepend-rank"] if label else [])

    def _open_mpi(
        self, hosts: str, agent: str | None, address: str | None, label: bool, names: Sequence[str]
    ) -> list[str]:
        options = ["--prtemca", "plm_ssh_agent", agent] if agent else []
        options += ["--host", hosts] if hosts else []
        options += ["--output", "tag"] if label else []
        for name in names:  # by name: command lines are visible to other users
            options += ["-x", name]
        return options if hosts else [*options, "--map-by", ":OVERSUBSCRIBE"]

    def environment(
        self, env: Mapping[str, str], folder: str, *, one_host: bool = False
    ) -> dict[str, str]:
        """Return the environment of the launcher.

        Args:
            folder: folder for the files of Open MPI's launcher.  By default, the launcher names the
                folder after its process id; after a kill, the files would stay in this folder, and
                the next launcher with the same id would fail.
            one_host: whether all ranks run on this host, so that no other host needs to reach them.
        """
        own = {**_WITHIN_A_HOST[self.kind], **env} if one_host else dict(env)
        if self.kind == OPEN_MPI:
            own["PRTE_MCA_prte_local_tmpdir_base"] = folder
            if os.geteuid() == 0:
                own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return own


_LOOPBACK = {"UCX_NET_DEVICES": "lo"} if sys.platform == "linux" else {}
_WITHIN_A_HOST = {MPICH: _LOOPBACK, OPEN_MPI: {**_LOOPBACK, "OMPI_MCA_btl": "^tcp"}}
"""Settings with which ranks that share one host listen on loopback, or not at all.

Settings of the user take precedence.  There is no such setting for the launchers' own ports.
"""


def _kind(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"asking {path} for its version", found=str(error)) from error
    text = done.stdout + done.stderr
    for mark, kind in _MARKS.items():
        if mark in text:
            return kind
    raise LaunchError(
        f"asking {path} for its version", found=f"{text[:200]!r}", allowed=f"{MPICH} or {OPEN_MPI}"
    )
