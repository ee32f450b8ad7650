"""The hooks of the entry-point group ``flow.plugins``.

A plugin is a module that sets ``FLOW_PLUGIN_API = "1.0"`` and defines functions with these names;
the marker `hookimpl` is optional.  A plugin may omit any hook, and any argument of a hook.  The
import of the module must not access hardware: hooks return the frozen records of
`flow_core.plugins.specs`, whose expensive parts are lazy ``"package.module:attribute"`` strings.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import pluggy

from flow_core.base.config import Settings
from flow_core.plugins.exporters import ExporterSpec
from flow_core.plugins.specs import (
    AnnotationSpec,
    BoxingSpec,
    CommSpec,
    DecoderSpec,
    DeviceSpec,
    FormatSpec,
    KernelSpec,
    OpSpec,
    PassSpec,
    ReaderSpec,
)

PROJECT = "flow"
GROUP = "flow.plugins"
API_VERSION = (1, 0)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Optional marker of hook implementations, for ``tryfirst``, ``trylast`` or ``specname``."""


@hookspec
def flow_register_ops(config: Settings) -> Iterable[OpSpec]:
    """Register op types: schema, inference, SBP rules and gradient.

    Returns `OpSpec` records.  Called once, while the registry is built.  An op type that another
    plugin has already registered raises `PluginConflictError`.

    Example::

        def flow_register_ops():
            return [OpSpec("cube", ("x",), like_input, reference=lambda x: x**3)]
    """
    return ()


@hookspec
def flow_register_kernels(config: Settings) -> Iterable[KernelSpec]:
    """Register kernels for ops on a device type.

    Returns `KernelSpec` records; op ``"*"`` matches any op.  Called once, while the registry is
    built.  Among the kernels that accept a query, the one with the highest priority runs.

    Example::

        def flow_register_kernels():
            return [KernelSpec("cube", "cpu", "cubes.kernels:bind", name="cubes.cube")]
    """
    return ()


@hookspec
def flow_register_devices(config: Settings) -> Iterable[DeviceSpec]:
    """Register device types.

    Returns `DeviceSpec` records.  Called once, while the registry is built; the probe runs only
    when a program uses the device type.  A probe that finds no device returns `Unavailable` with a
    reason; a probe must not raise an exception.  The driver is loaded once per device, with the
    `flow_core.sharding.topology.Device` as its argument.

    Example::

        def flow_register_devices(config):
            if config.emulate_gpus:
                return []
            return [DeviceSpec("gpu", "cubes.gpu:probe", "cubes.gpu:Driver")]
    """
    return ()


@hookspec
def flow_register_comms(config: Settings) -> Iterable[CommSpec]:
    """Register communication libraries, which connect devices of one or several processes.

    Returns `CommSpec` records.  Called once, while the registry is built.  Among the libraries that
    support a plan's device types and whose ``bootstrap`` returns `Available`, the one with the
    highest priority is loaded with the plan's `flow_core.sharding.topology.Device` objects; see
    `flow_core.device.Comm`.

    Example::

        def flow_register_comms():
            return [CommSpec("ring", ("cpu",), "rings:join", "rings:Ring")]
    """
    return ()


@hookspec
def flow_register_boxing(config: Settings) -> Iterable[BoxingSpec]:
    """Register boxings (reshardings) from one SBP pattern to another.

    Returns `BoxingSpec` records.  Called once, while the registry is built.  A boxing is a
    sequence of intermediate layouts; core generates the exchanges.

    Example::

        def flow_register_boxing():
            return [BoxingSpec("ring.p2b", "P", "B", ("cpu",), "rings:cost", "rings:stops")]
    """
    return ()


@hookspec(firstresult=True)
def flow_choose_boxing(
    src: object, dst: object, tensor: object, candidates: Sequence[BoxingSpec]
) -> str | None:
    """Override the planner's choice of a boxing.

    Returns the name of one of ``candidates`` (cheapest first), or None for no preference.  The
    plugin that was loaded last is called first, and the first name that a plugin returns is used.
    The planner's own candidates are named after their steps, as in ``"reduce_scatter+all_gather"``.
    Called at compile time, once per transition.  ``src`` and ``dst`` are SBPs on a placement;
    ``tensor`` is the logical type.

    Example::

        def flow_choose_boxing(tensor, candidates):
            ring = [c.name for c in candidates if c.name.startswith("ring.")]
            return ring[0] if ring and tensor.nbytes > 1 << 20 else None
    """
    return None


@hookspec
def flow_register_readers(config: Settings) -> Iterable[ReaderSpec]:
    """Register readers of records.

    Returns `ReaderSpec` records.  Called once, while the registry is built.

    Example::

        def flow_register_readers():
            return [ReaderSpec("tar", "tars.reader:TarReader")]
    """
    return ()


@hookspec
def flow_register_decoders(config: Settings) -> Iterable[DecoderSpec]:
    """Register decoders for the fields of records.

    Returns `DecoderSpec` records.  Called once, while the registry is built.

    Example::

        def flow_register_decoders():
            return [DecoderSpec("flac", "sounds.flac:decode")]
    """
    return ()


@hookspec
def flow_register_annotations(config: Settings) -> Iterable[AnnotationSpec]:
    """Register annotations for parameters and results of job functions.

    Returns `AnnotationSpec` records.  Called once, while the registry is built.

    Example::

        def flow_register_annotations():
            return [AnnotationSpec("Frame", is_frame, fetch="frames:fetch")]
    """
    return ()


@hookspec
def flow_register_passes(config: Settings) -> Iterable[PassSpec]:
    """Register graph passes.

    Returns `PassSpec` records.  Called once, while the registry is built.  The registry orders the
    passes by stage and by ``before``/``after``.  Of passes that form a cycle, the one that was
    registered last is not used.  Names of unregistered passes in ``before`` and ``after`` have no
    effect.

    Example::

        def flow_register_passes():
            return [PassSpec("cubes", "logical", "cubes.passes:Cubes", after=("dce",))]
    """
    return ()


@hookspec
def flow_register_checkpoint_formats(config: Settings) -> Iterable[FormatSpec]:
    """Register checkpoint formats.

    Returns `FormatSpec` records.  Called once, while the registry is built.  ``can_open`` decides
    whether a path has the format.

    Example::

        def flow_register_checkpoint_formats():
            return [FormatSpec("zip", is_zip, "zips:read", "zips:write")]
    """
    return ()


@hookspec
def flow_register_exporters(config: Settings) -> Iterable[ExporterSpec]:
    """Register file formats to which predict jobs are exported for other programs.

    Returns `ExporterSpec` records.  Called once, while the registry is built.  The exporter
    receives an `ExportedJob` and the options that were passed to the export function.

    Example::

        def flow_register_exporters():
            return [ExporterSpec("onnx", "cubes.onnx:write")]
    """
    return ()


@hookspec
def flow_register_commands(cli: object) -> None:
    """Add subcommands to ``flow``.

    Returns nothing; adds commands to ``cli``, a `click.Group` for this plugin, whose commands are
    then merged into ``flow``.  Called when ``flow`` lists its commands or runs a command that core
    does not have.  A duplicate name raises `PluginConflictError`.

    Example::

        def flow_register_commands(cli):
            @cli.command()
            def cubes():
                click.echo("27")
    """


@hookspec
def flow_doctor(config: Settings) -> Iterable[str]:
    """Report diagnostics of this plugin for ``flow doctor``.

    Returns lines of text.  Called only by ``flow doctor``; may access hardware.

    Example::

        def flow_doctor():
            return [f"cube library {cubes.version()}"]
    """
    return ()


@hookspec
def flow_describe_machine() -> Mapping[str, str]:
    """Describe what the kernels and passes of this plugin depend on outside of the plugin.

    Returns texts by name, such as versions of libraries, instruction sets and models of devices.
    Called at most once per program, before a compiled job is identified; may access hardware.
    A fact ``fast products on cpu``, with the name of a device type, names the 16-bit type whose
    products are fast on this machine, so that ``flow plan`` suggests mixed precision.

    Example::

        def flow_describe_machine():
            return {"cube library": cubes.version()}
    """
    return {}


@hookspec
def flow_plan_ready(plan: object) -> None:
    """Observe a compiled plan.

    Returns nothing.  Called once per plan, after compilation and before its first step.

    Example::

        def flow_plan_ready(plan):
            log.info("%s", plan)
    """


@hookspec
def flow_step_finished(step: int, stats: object) -> None:
    """Observe the steps of a job.

    Returns nothing.  Called after each step of each job; implementations are looked up once per
    plan, so jobs without observers have no overhead.

    Example::

        def flow_step_finished(step, stats):
            if step % 100 == 0:
                log.info("step %d: %s", step, stats)
    """


@cache
def hook_arguments() -> Mapping[str, tuple[str, ...]]:
    """Return the argument names of every hook.

    >>> hook_arguments()["flow_step_finished"]
    ('step', 'stats')
    """
    functions = inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    return MappingProxyType(
        {
            name: tuple(inspect.signature(function).parameters)
            for name, function in sorted(
                functions, key=lambda item: item[1].__code__.co_firstlineno
            )
            if name.startswith("flow_")
        }
    )


def signature(hook: str) -> str:
    """Format a hook's signature as in the documentation.

    >>> signature("flow_register_ops")
    'flow_register_ops(config)'
    """
    return f"{hook}({', '.join(hook_arguments()[hook])})"
