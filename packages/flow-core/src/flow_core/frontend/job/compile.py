"""Compilation of a job for its session: what to try, and what later jobs must respect."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flow_core.base.errors import OutOfMemoryError
from flow_core.base.planning import is_planning
from flow_core.compiler.kept_plans import Entry
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.compiler.searched import Searched
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.forms.agreement import Agreement
from flow_core.frontend.job.forms.kept import keep_form, kept_form
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.job.host_fallback import announce, compile_with_fallback
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.passes.optimizer_placement import Owned
from flow_core.sharding.topology import Device


class Compilation:
    """The compilation of a job, whose plan may be on disk.

    If the job does not fit into its devices, its plan is that of its cheapest form that fits.
    """

    def __init__(
        self,
        source: Source,
        effects: bool = True,  # see `compile_request`
        devices: Collection[Device] | None = None,
        plan_cache: int = 0,  # the maximum size of all plans on disk in bytes; 0 to keep none
        # Traces the job in a number of micro-batches and of stages; None if it cannot be traced
        # again.
        retrace: Callable[[int, int], Source] | None = None,
    ) -> None:
        self._source, self._effects, self._devices = source, effects, devices
        self._retrace = retrace
        self._as_it_is = self._request(source)
        self._entry = Entry.of(self._as_it_is, plan_cache)

    def _request(self, source: Source) -> CompileRequest:
        build, values, inputs = source.build, source.values, source.inputs
        return compile_request(build, values, inputs, self._effects, self._devices)

    def kept(self) -> Compiled | None:
        """Return the plan on disk of the job, or of its form that fits; None if there is none."""
        if self._entry is None or is_planning():
            return None
        return self._entry.find() or kept_form(self._entry, self._source, self._request_of)

    def _request_of(self, searched: Searched) -> CompileRequest | None:
        from flow_core.frontend.job.forms.search import Search, Steps

        steps = Steps(self._retrace, self._request, compile_with_fallback)
        return Search(self._source, steps).request(searched.levels)

    def made(self, agreement: Agreement | None = None) -> Compiled:
        """Compile the job.

        Args:
            agreement: what several processes agree on; None in a single process.

        Raises:
            OutOfMemoryError: no form fits; the error says which forms were searched.
            KernelNotFoundError: kernels are missing, and ops may not run on the CPU instead.
        """
        compiled = compile_with_fallback if agreement is None else agreement.compiled
        try:
            return compiled(self._as_it_is)
        except OutOfMemoryError as error:
            from flow_core.frontend.job.forms.search import Steps
            from flow_core.frontend.job.forms.within_memory import cheapest_form

            if agreement is None:
                steps = Steps(self._retrace, self._request, compiled)
            else:
                steps = Steps(self._retrace, self._request, compiled, agreement.form, alone=False)
            return cheapest_form(self._source, steps, error)

    def keep(self, compiled: Compiled) -> None:
        """Write the plan to disk, and the form that it belongs to if the job does not fit."""
        if self._entry is not None and compiled.searched is not None:
            keep_form(self._entry, self._source, compiled)
        elif self._entry is not None:
            self._entry.keep(compiled)

    def compiled(self, agreement: Agreement | None = None) -> Compiled:
        """Find the plan on disk, or compile the job; `record` what later jobs must respect.

        Args:
            agreement: as for `made`; then the plan is not looked for, which takes an agreement.
        """
        compiled = self.kept() if agreement is None else None
        if compiled is None:
            compiled = self.made(agreement)
            if agreement is None:
                self.keep(compiled)
        record(self._source.build, compiled)
        return compiled


def record(build: JobBuild, compiled: Compiled) -> None:
    """Record in the session the choices of a compiled job; warn of its ops that run on the CPU."""
    announce(build, compiled.request.hosted)
    in_stages = build.stages or (compiled.searched and compiled.searched.stages)
    for name, layout in compiled.variables.items():
        build.session.layouts.setdefault(name, layout)
        if in_stages:
            build.session.staged.setdefault(name, Owned(layout.placement, (layout.sbp,)))
    for name, shared in compiled.shared.items():
        build.session.sharing.setdefault(name, shared)
