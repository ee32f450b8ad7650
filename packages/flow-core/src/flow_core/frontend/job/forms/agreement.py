"""Agreement of several processes on the form of a job that fits into the devices of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from flow_core.base.errors import FlowError, JobError, OutOfMemoryError
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.compiler.select import NdSignature
from flow_core.device import World
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.job.plan_agreement import SharedSelection

if TYPE_CHECKING:
    from flow_core.frontend.job.forms.form import Form


class Agreement:
    """Compiles a job in all processes, with one SBP selection and one outcome.

    Devices of different processes may have different memory, and each process compiles the tasks of
    its own devices.  A form fits if it fits everywhere; its time is that which rank 0 predicts.
    """

    def __init__(self, world: World, job: str) -> None:
        self._world, self._job = world, job

    def compiled(self, request: CompileRequest) -> Compiled:
        """Compile a request with the selection of rank 0.

        Raises `FlowError` if the compilation has failed in this process or in another one.
        """
        selection = SharedSelection(self._world, self._job, str(request.selector))
        try:
            found = compile_with_fallback(replace(request, selector=selection))
        except FlowError as error:
            self._finish(selection, {}, error)
            raise
        self._finish(selection, found.physical.signatures, None)
        return replace(found, request=replace(found.request, selector=request.selector))

    def already(self, compiled: Compiled) -> None:
        """Take part if this process has compiled the job before.

        Raises `FlowError` if the compilation has failed in another process.
        """
        selection = SharedSelection(self._world, self._job, "greedy")
        self._finish(selection, compiled.physical.signatures, None)

    def _finish(
        self,
        selection: SharedSelection,
        signatures: Mapping[str, NdSignature],
        failed: FlowError | None,
    ) -> None:
        selection.finish(signatures)
        what = f"comparing the outcomes of compiling job {self._job!r}"
        large = failed.nbytes if isinstance(failed, OutOfMemoryError) else None
        found = [None if failed is None else [str(failed), large]]
        gathered = self._world.gather(json.dumps(found).encode(), what)
        for rank, text in enumerate(gathered):
            (outcome,) = json.loads(text)
            if outcome is not None and failed is None:
                raise _of_another(self._job, rank, *outcome)

    def form(self, form: Form) -> Form:
        """Return a form with the numbers on which all processes agree."""
        numbers = [
            form.fits, form.seconds, form.busiest, form.work, form.nbytes, form.variables,
            form.limit, str(form.device),
        ]  # fmt: skip
        what = f"comparing the memory of a form of job {self._job!r}"
        gathered = [
            json.loads(text) for text in self._world.gather(json.dumps(numbers).encode(), what)
        ]
        _, seconds, busiest, work, *_ = gathered[0]
        *_, nbytes, variables, limit, device = max(
            gathered, key=lambda n: float("-inf") if n[6] is None else n[4] - n[6]
        )
        fits = all(row[0] for row in gathered)
        return replace(
            form, fits=fits, seconds=seconds, busiest=busiest, work=work, nbytes=nbytes,
            variables=variables, limit=limit, device=device,
            compiled=form.compiled if fits else None,
        )  # fmt: skip


def _of_another(job: str, rank: int, text: str, nbytes: int | None) -> FlowError:
    """Return the error about a failure in another process."""
    what, found = f"compiling job {job!r}", f"a failure in rank {rank}: {text}"
    if nbytes is None:
        return JobError(what, found=found)
    error = OutOfMemoryError(what, found=found)
    error.nbytes = nbytes
    return error
