"""The way of a job to its first step: trace, differentiate, compile, bind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from warnings import catch_warnings, simplefilter

from flow_core.annotations import JobSignature
from flow_core.base.arrays import Array
from flow_core.base.errors import CompatibilityWarning, JobError, ZeroWeightsWarning, located
from flow_core.base.garbage import gc_paused
from flow_core.compiler.replicas import updated_variables
from flow_core.compiler.request import Compiled
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.job.compile import Compilation, record
from flow_core.frontend.job.differentiate import differentiate, log_notes
from flow_core.frontend.job.feeding import Shapes, StagingBuffers
from flow_core.frontend.job.fetches import Fetches
from flow_core.frontend.job.forms.agreement import Agreement
from flow_core.frontend.job.forms.source import Source
from flow_core.frontend.job.forms.stages import PIPELINE_STAGES, divide
from flow_core.frontend.job.micro_batches import trace_micro_batch
from flow_core.frontend.job.plan_agreement import check_same_plan, is_kept_by_all
from flow_core.frontend.job.progress import stage
from flow_core.frontend.job.zero_weights import warn_of_zero_weights
from flow_core.frontend.session.own_devices import OwnDevices, own_devices
from flow_core.frontend.session.session import Session
from flow_core.frontend.trace.job_build import JobBuild, Kind
from flow_core.plan import Plan
from flow_core.runtime.executable import Executable
from flow_core.sharding.topology import Device, Placement

_log = logging.getLogger("flow_core")


class Variant:
    """A job for given shapes of arrays.

    Creation traces and differentiates the job, which declares its variables.  The job is compiled
    when its plan is needed, and bound when it runs.
    """

    def __init__(
        self,
        session: Session,
        function: Callable[..., object],
        signature: JobSignature,
        build: JobBuild,  # the job's graph, still empty
        fresh: Callable[[], JobBuild],  # a function that returns another empty graph of the job
        shapes: Shapes,
        # A function that is called with the session and the kind of the traced job.
        check_kind: Callable[[Session, Kind], None],
        # A function that traces the job with other settings and devices of its stages, without any
        # effect on the session.
        again: Callable[[FunctionConfig, Placement | None], Variant],
        onto: Placement | None = None,  # devices to divide into stages; None for those of the job
    ) -> None:
        self.session, self.shapes = session, shapes
        self._again, self._others = again, dict[tuple[int, int], Variant]()
        with stage(build.name, "tracing"), gc_paused():
            self.traced = trace_micro_batch(function, signature, shapes, build, fresh)
        self.traced.build.fed = None
        check_kind(session, self.traced.build.kind)
        stages = int(self.traced.build.config.get(PIPELINE_STAGES) or 1)
        if stages > 1:
            with located(next(iter(self.traced.build.builder.lines.values()), None)):
                divide(self.traced.build, stages, onto)
        self.fetches = Fetches(self.traced, differentiate(self.traced))
        self._own_values = len(self.fetches.values)
        self.compiled: Compiled | None = None  # None before compilation
        self.executable: Executable | None = None  # None before binding
        self.staging = StagingBuffers()  # for the fed arrays of asynchronous steps

    def compile(self, agreement: Agreement | None = None) -> Compiled:
        """Compile the job if that has not been done; return it with its plan.

        Args:
            agreement: what several processes agree on; None in a single process.
        """
        if self.compiled is not None and agreement is not None:
            agreement.already(self.compiled)
        if self.compiled is None:
            session = self.session
            alone = session.world is None and not session.eager
            size = session.settings.plan_cache if alone else 0
            with session.compiling, stage(self.traced.build.name, "compiling"):
                if self.compiled is None:
                    self.compiled = self._compilation(size).compiled(agreement)
                    self._take_form(self.compiled)
        return self.compiled

    def _compilation(self, plan_cache: int) -> Compilation:
        return Compilation(
            self.source,
            devices=self.own.devices,
            plan_cache=plan_cache,
            retrace=self._in_form,
        )

    def compile_classes(self, devices: Collection[Device] | None) -> Compiled:
        """Compile the job for given devices and one of each class, without any effect on it.

        Args:
            devices: the devices; None for a plan of all devices.
        """
        return Compilation(self.source, devices=devices, retrace=self._in_form).compiled()

    def _in_form(self, parts: int, stages: int) -> Source:
        """Trace the job in another form, and keep it in case that it is chosen."""
        other = self._others[parts, stages] = self.in_form(parts, stages)
        return other.source

    def in_form(self, parts: int, stages: int = 1, onto: Placement | None = None) -> Variant:
        """Trace the job in a number of micro-batches, and of stages of a pipeline.

        Args:
            onto: the devices to divide into stages; None for those of the job.

        Raises:
            FlowError: the job cannot be traced so.
            CompatibilityWarning: its loss would not be that of the whole batch.
        """
        if len(self.fetches.values) != self._own_values:
            raise JobError(
                f"tracing job {self.traced.build.name!r} in {parts} micro-batches",
                found="a report that reads other values than those that the job returns",
            )
        config = self.traced.build.config.copy()
        config.train.num_gradient_accumulation_steps(parts)
        if stages > 1:
            getattr(config, PIPELINE_STAGES)(stages)
        with catch_warnings():
            simplefilter("error", CompatibilityWarning)
            simplefilter("ignore", ZeroWeightsWarning)
            return self._again(config, onto)

    @property
    def source(self) -> Source:
        """The job as the search for its forms takes it."""
        return Source(self.traced.build, self.fetches.values, self.traced.inputs)

    def _take_form(self, compiled: Compiled) -> None:
        """Return from now on what the compiled form returns, if it was traced again."""
        stages = len(compiled.searched.stages) if compiled.searched else 0
        other = self._others.pop((compiled.request.micro_batches, stages or 1), None)
        if other is not None:
            self.traced, self.fetches = other.traced, other.fetches
        self._others.clear()
        self._warn(compiled)

    def bind(self, step: Array, ready: Callable[[Session, Plan], None]) -> Executable:
        """Compile the job in all processes, and bind the plan, if that has not been done.

        Args:
            step: the step counter, which the plans of a job share.
            ready: a function that is called with the session and the bound plan; if it fails, the
                variables that binding has created are discarded.
        """
        if self.executable is None:
            with self.session.compiling:
                compiled = self._compile_together()
                self.executable = self.executable or self._bound(compiled, step, ready)
        return self.executable

    @cached_property
    def own(self) -> OwnDevices:
        return own_devices(self.session, self.traced.build)

    def _bound(
        self, compiled: Compiled, step: Array, ready: Callable[[Session, Plan], None]
    ) -> Executable:
        session, registry, plan = self.session, self.session.registry, compiled.plan
        with session.binding(), stage(plan.job, "binding"), gc_paused():
            if plan.classes and session.world is not None:
                for name, layout in compiled.variables.items():
                    session.adopt(name, layout, session.world)
            executable = _executable_factory(session)(
                plan,
                registry,
                session.driver,
                session.variable,
                finished=registry.observers("flow_step_finished"),
                comm=registry.comm,
                step=step,
                world=session.world,
                sync_launches=session.settings.sync_launches,
                overlap=session.settings.stream_threads is None,
                writes=session.writes,
            )
            session.drop_initial_values()
            session.check_replicas(plan.job, updated_variables(compiled, registry.ops))
            ready(session, plan)
        return executable

    def _compile_together(self) -> Compiled:
        """Compile the job; several processes use one SBP selection and compare their plans.

        They use plans kept on disk if all of them find the same one.
        """
        world, build = self.session.world, self.traced.build
        if world is None:
            return self.compile()
        size = 0 if self.compiled is not None else self.session.settings.plan_cache
        compilation = self._compilation(size)
        kept = compilation.kept()
        if is_kept_by_all(world, build, kept) and kept is not None:
            record(build, kept)
            self._take_form(kept)
            return self._noted(kept)
        compiled = self.compile(Agreement(world, build.name))
        check_same_plan(world, self.traced.build, compiled)
        compilation.keep(compiled)
        return self._noted(compiled)

    def _noted(self, compiled: Compiled) -> Compiled:
        """Note in the plan why a process of several has compiled all devices of the job."""
        if self.own.reason:
            notes = {**compiled.plan.notes, "compiled for all devices": self.own.reason}
            compiled = replace(compiled, plan=replace(compiled.plan, notes=notes))
        self.compiled = compiled
        return compiled

    def _warn(self, compiled: Compiled) -> None:
        """Tell which form a compiled job has; issue its warnings once per name of a job."""
        session, traced, searched = self.session, self.traced, compiled.searched
        name, speaks = traced.build.name, session.world is None or session.world.rank == 0
        if searched is not None and speaks:
            _log.warning(
                "job %r does not fit into the %s bytes of %s as it is, and runs in another form "
                "that fits: %s; `flow plan --full` prints the search",
                name, f"{searched.limit:,}", searched.device, searched.form,
            )  # fmt: skip
        if traced.build.kind == "train" and name not in session.checked_weights:
            session.checked_weights.add(name)
            if speaks:
                log_notes(name, traced.build.train_requests)
            registry = session.registry
            warn_of_zero_weights(name, traced.line, compiled.logical, registry.ops, session)


def _executable_factory(session: Session) -> Callable[..., Executable]:
    """Return the function that creates executables, which observe steps only on request."""
    settings, recorder = session.settings, session.recorder
    asked = settings.trace or settings.stragglers or settings.check_finite != "off"
    if not (asked or recorder):
        return Executable
    from flow_core.runtime.observers import observed_executable

    return observed_executable(settings, recorder)
