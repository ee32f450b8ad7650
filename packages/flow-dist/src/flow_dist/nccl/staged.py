"""The communicator (comm) for devices of any types in several processes, such as CPUs and GPUs.

Exchanges between GPUs use NCCL if it is installed.  All others are staged in host memory, where MPI
performs them: batches that CPUs read, ops that run on the CPU, and devices of other backends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flow_core.authoring.backends import Comm, DevicePair, Exchange, Launch, StagedComm
from flow_core.authoring.specs import Device, Unavailable
from flow_core.base.errors import HostExchangeWarning, user_line, warn
from flow_dist.mpi.comm import MpiComm
from flow_dist.nccl import comm as nccl


class MpiStagedComm(StagedComm):
    """The connection of a plan's devices, whatever their types, over all processes of the program.

    Args:
        devices: all devices; `MpiWorld.owner` maps each device to a rank.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        hosts = MpiComm(devices)
        super().__init__("mpi_staged", hosts, hosts.staging, shares=False)
        self._direct = _direct([device for device in devices if device.type == "gpu"])

    def _goes_direct(self, devices: Collection[Device]) -> bool:
        return self._direct is not None and {device.type for device in devices} == {"gpu"}

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """Return this process's launches of an exchange; none if the process does not take part.

        Raises `PlanError` if the arrays do not match the exchange.
        """
        if self._direct is not None and self._goes_direct(exchange.devices):
            return tuple(self._direct.bind(exchange, inputs, outputs))
        return super().bind(exchange, inputs, outputs)

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the bytes that local devices have sent so far, keyed by (sender, receiver)."""
        direct = {} if self._direct is None else self._direct.sent()
        return Counter(direct) + Counter(super().sent())

    def before_step(self) -> None:
        """Prepare for a step that begins; raise the errors of NCCL."""
        if self._direct is not None:
            self._direct.before_step()

    def after_step(self) -> None:
        """Finish a step whose results are on the host; raise the errors of NCCL."""
        if self._direct is not None:
            self._direct.after_step()


def _direct(gpus: Sequence[Device]) -> Comm | None:
    """Return the comm of the GPUs of a plan, None if NCCL is not available."""
    if len(gpus) < 2:
        return None
    found = nccl.bootstrap()
    if not isinstance(found, Unavailable):
        return nccl.NcclComm(gpus)
    text = f"exchanges between {len(gpus)} GPUs are staged in host memory: {found.reason}"
    text += f"; {found.hint}" if found.hint else ""
    warn(text, HostExchangeWarning, user_line())
    return None
