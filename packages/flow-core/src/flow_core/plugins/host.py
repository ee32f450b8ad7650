"""Find plugins, call the hooks of each plugin separately, and create the registry.

A plugin that fails is isolated: none of its records stay registered, and a `PluginFailure` gives
the reason.  If two plugins register a record with the same key, the one loaded later fails.  Of
passes that form a cycle, the one that was registered last is not used.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

import pluggy

import flow_core
from flow_core.base.config import Settings
from flow_core.base.errors import (
    PluginConflictError,
    PluginError,
    PluginResultError,
    PluginWarning,
    hide_frames,
    nearest,
    plugin_line,
    user_line,
    warn,
)
from flow_core.plugins import hookspecs
from flow_core.plugins.api_version import checked_api
from flow_core.plugins.builder import RegistryBuilder
from flow_core.plugins.guards import guarded_hook
from flow_core.plugins.hookspecs import GROUP, PROJECT, hook_arguments, signature
from flow_core.plugins.kinds import KINDS, Kind, checked_records
from flow_core.plugins.records import Origin, PluginFailure, PluginRecord
from flow_core.plugins.registry import HookCall, Registry

BUILTINS: tuple[str, ...] = (
    "flow_core.builtin.ops_plugin",
    "flow_core.builtin.numpy_plugin",
    "flow_core.builtin.null_plugin",
    "flow_core.builtin.emulated_plugin",
    "flow_core.builtin.comm_plugin",
    "flow_core.builtin.formats_plugin",
    "flow_core.builtin.passes_plugin",
)
"""Plugins of flow-core, which are loaded first and whose failures are always raised."""

Records = Mapping[Kind, tuple[Any, ...]]
_REGISTERING = {kind.hook for kind in KINDS}
_REPORTED = {"flow_register_commands", "flow_doctor", "flow_step_finished"}
"""Hooks whose callers report failures themselves."""
_ERRORS = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that can be loaded.

    Attributes:
        origin: the plugin's name and distribution.
        load: the function that imports the plugin.
        listed: whether FLOW_PLUGINS, if set, must name the plugin for it to be loaded.
        builtin: whether a failure of the plugin is always raised.
        module: name of the plugin's module, or empty.
    """

    origin: Origin
    load: Callable[[], object]
    listed: bool = False
    builtin: bool = False
    module: str = ""

    def may_implement(self, hook: str) -> bool:
        """Return False if the source of the plugin's module shows that it lacks a hook.

        The module and its package are not imported.
        """
        package, *rest = self.module.split(".")
        spec = importlib.util.find_spec(package) if package else None
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder, *rest).with_suffix(".py")
            if rest and path.is_file():
                text = path.read_text(errors="replace")
                return hook in text or "import *" in text or "__getattr__" in text
        return True

    def declared_api(self) -> str | None:
        """Return the API version that the source of a module declares, without importing it."""
        spec = importlib.util.find_spec(self.module) if self.module else None
        text = Path(spec.origin).read_text() if spec and spec.has_location and spec.origin else ""
        found = re.search(
            r"""^FLOW_PLUGIN_API\b[^=\n]*=\s*["'](\d+\.\d+)["']""", text, re.MULTILINE
        )
        return found[1] if found else None


class _Manager(pluggy.PluginManager):
    """A plugin manager that treats every function named ``flow_...`` as a hook implementation."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is not None or not name.startswith("flow_"):
            return options
        if not inspect.isroutine(inspect.getattr_static(plugin, name)):
            return None
        return pluggy.HookimplOpts(
            wrapper=False,
            hookwrapper=False,
            optionalhook=False,
            tryfirst=False,
            trylast=False,
            specname=None,
        )


class Host:
    """Load the plugins of one process.

    Args:
        settings: the process's settings, the argument ``config`` of every registration hook.
        extra: further plugins: modules, objects with hooks, or names of modules.
        builtins: names of the modules of flow-core's own plugins.

    Attributes:
        records: the result of loading each plugin; filled even if `load` raises.
    """

    def __init__(
        self, settings: Settings, extra: Sequence[object] = (), builtins: Sequence[str] = BUILTINS
    ) -> None:
        self.settings = settings
        self.records: list[PluginRecord] = []
        self._extra = tuple(extra)
        self._builtins = tuple(builtins)
        self._builder = RegistryBuilder()
        self._origins: dict[str, Origin] = {}
        self._manager = _Manager(PROJECT)
        self._manager.add_hookspecs(hookspecs)

    def load(self) -> Registry:
        """Load all plugins; must be called only once.

        Warns:
            PluginWarning: a plugin is not used because it duplicates a record, or some records of a
                plugin are not used: no plugin registers their op or device type, or ``before`` and
                ``after`` of passes form a cycle.

        Raises:
            PluginError: one of flow-core's plugins failed, or any plugin if FLOW_PLUGIN_STRICT is
                set.
        """
        for candidate in self._candidates():
            state = self._skipped(candidate)
            if state:
                self._trace(f"{candidate.origin}: {state}")
                self.records.append(PluginRecord(candidate.origin, state))
            else:
                self._load_one(candidate)
        self._check_listed()
        self._refuse()
        return self._builder.build(self.records, self._calls(), self.settings.probe_seconds)

    def load_commands(self) -> tuple[HookCall, ...]:
        """Load the plugins that may add commands, but none of their records; call at most once.

        Raises:
            PluginError: a plugin failed, and FLOW_PLUGIN_STRICT is set.
        """
        hook = "flow_register_commands"
        for candidate in self._candidates():
            own = candidate.builtin or self._skipped(candidate)
            if own or not candidate.may_implement(hook):
                continue
            attempt = _Attempt(candidate.origin)
            try:
                self._check_name(candidate)
                self._register(attempt, candidate)
            except _ERRORS as error:
                self._fail(attempt, _explained(error, candidate), fatal=False)
        return tuple(self._hook_calls(hook))

    def _candidates(self) -> Iterator[Candidate]:
        for name in self._builtins:
            origin = Origin(_builtin_name(name), "flow-core", flow_core.__version__, name)
            yield Candidate(origin, partial(importlib.import_module, name), builtin=True)
        yield from _installed()
        for plugin in self._extra:
            yield _extra_candidate(plugin)

    def _skipped(self, candidate: Candidate) -> str:
        if candidate.origin.is_named_in(self.settings.disabled_plugins):
            return "disabled"
        allowed = self.settings.plugins
        if candidate.listed and allowed is not None and not candidate.origin.is_named_in(allowed):
            return "not allowed"
        return ""

    def _load_one(self, candidate: Candidate) -> None:
        attempt = _Attempt(candidate.origin)
        try:
            self._check_name(candidate)
            records = self._collect(attempt, candidate)
            attempt.stage = "conflict"
            self._builder.add(candidate.origin, records, guard=not candidate.builtin)
        except _ERRORS as error:
            self._fail(attempt, _explained(error, candidate), candidate.builtin)
            if isinstance(error, PluginConflictError):
                _warn(f"{candidate.origin} is not used: {error}")
            return
        counts = {kind.table: len(specs) for kind, specs in records.items() if specs}
        self.records.append(PluginRecord(candidate.origin, "loaded", counts, api=attempt.api))

    def _refuse(self) -> None:
        """Drop the records that cannot be used together with others; warn once per plugin."""
        for origin, errors in self._builder.refuse().items():
            if self.settings.plugin_strict:
                raise errors[0]
            for i, record in enumerate(self.records):
                if record.origin == origin:
                    self.records[i] = replace(record, refused=tuple(errors))
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            _warn(f"records are not used: {errors[0]}{more}")

    def _check_name(self, candidate: Candidate) -> None:
        origin = candidate.origin
        first = self._origins.setdefault(origin.plugin, origin)
        if first is not origin:
            raise PluginConflictError(
                f"loading {origin}",
                found=f"{first}, which is already loaded",
                allowed=f"one plugin per name (entry-point group {GROUP})",
                hint="uninstall one of them, or disable one by its distribution: "
                f"FLOW_DISABLE_PLUGINS={origin.distribution or origin.plugin}",
            )

    def _collect(self, attempt: _Attempt, candidate: Candidate) -> Records:
        """Import a plugin and return all its records."""
        plugin = self._register(attempt, candidate)
        return {kind: self._call(attempt, kind, plugin) for kind in KINDS}

    def _register(self, attempt: _Attempt, candidate: Candidate) -> object:
        """Import a plugin, check its hooks, and make them known to the manager."""
        self._trace(f"{candidate.origin}: importing")
        plugin = candidate.load()
        attempt.stage = "api"
        attempt.api = checked_api(candidate.origin, getattr(plugin, "FLOW_PLUGIN_API", None))
        attempt.stage = "validate"
        self._check_hooks(candidate.origin, plugin)
        self._manager.register(plugin, candidate.origin.plugin)
        attempt.registered = plugin
        return plugin

    def _check_hooks(self, origin: Origin, plugin: object) -> None:
        for name in dir(plugin):
            options = self._manager.parse_hookimpl_opts(plugin, name)
            if options is not None:
                _check_hook(origin, getattr(plugin, name), name, options)

    def _call(self, attempt: _Attempt, kind: Kind, plugin: object) -> tuple[Any, ...]:
        """Call one hook of one plugin and validate the result; () if the plugin lacks the hook."""
        attempt.stage = kind.hook
        others = self._manager.get_plugins() - {plugin}
        caller = self._manager.subset_hook_caller(kind.hook, others)
        if not any(impl.plugin is plugin for impl in caller.get_hookimpls()):
            return ()
        start = perf_counter()
        results = caller(config=self.settings)
        records = tuple(
            record for result in results for record in checked_records(kind, attempt.origin, result)
        )
        took = (perf_counter() - start) * 1e3
        self._trace(f"{attempt.origin}: {kind.hook} -> {len(records)} in {took:.1f} ms")
        return records

    def _fail(self, attempt: _Attempt, error: BaseException, fatal: bool) -> None:
        if attempt.registered is not None:
            self._manager.unregister(attempt.registered)
        origin, stage = attempt.origin, attempt.stage
        text = "".join(traceback.format_exception(error))
        failure = PluginFailure(
            origin.plugin, origin.distribution, origin.version, stage, error, text,
            plugin_line(error),
        )  # fmt: skip
        self._trace(str(failure))
        self.records.append(PluginRecord(origin, "failed", failure=failure, api=attempt.api))
        if fatal or self.settings.plugin_strict:
            if isinstance(error, PluginError):
                raise error
            raise _typed(failure) from error
        error.__traceback__ = None  # release the frames, which reference the plugin's objects

    def _check_listed(self) -> None:
        """Record a failure for each name in FLOW_PLUGINS that is not installed."""
        installed = [record.origin for record in self.records]
        for name in self.settings.plugins or ():
            if not any(origin.is_named_in([name]) for origin in installed):
                known = sorted({origin.plugin for origin in installed})
                error = PluginError(
                    f"looking for plugin {name!r}, which FLOW_PLUGINS names",
                    found="no installed distribution that provides it",
                    allowed=", ".join(known),
                    hint=nearest(name, known) or None,
                )
                self._fail(_Attempt(Origin(name), "find"), error, fatal=False)

    def _calls(self) -> dict[str, tuple[HookCall, ...]]:
        """Return the implementations of the hooks that are called after loading, in call order."""
        hooks = (name for name in hook_arguments() if name not in _REGISTERING)
        return {hook: tuple(self._hook_calls(hook)) for hook in hooks}

    def _hook_calls(self, hook: str) -> Iterator[HookCall]:
        for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            call = _positional(impl.function, impl.argnames, hook_arguments()[hook])
            origin = self._origins[impl.plugin_name]
            if hook not in _REPORTED:
                call = guarded_hook(call, hook, origin)
            yield HookCall(origin, self._traced(origin, hook, call))

    def _traced(
        self, origin: Origin, hook: str, call: Callable[..., object]
    ) -> Callable[..., object]:
        if not self.settings.trace_plugins:
            return call

        def traced(*arguments: object) -> object:
            result = call(*arguments)
            self._trace(f"{origin}: {hook} -> {result!r}")
            return result

        return traced

    def _trace(self, text: str) -> None:
        if self.settings.trace_plugins:
            sys.stderr.write(f"flow.plugins: {text}\n")


@dataclass(slots=True)
class _Attempt:
    """The state of loading one plugin."""

    origin: Origin
    stage: str = "import"
    registered: object = None
    api: str = ""


def _typed(failure: PluginFailure) -> PluginError:
    return PluginError(
        f"loading {failure.origin} ({failure.stage})",
        found=failure.reason,
        hint=failure.origin.remedy,
    )


def _explained(error: BaseException, candidate: Candidate) -> BaseException:
    """Return the error, or one about the API version if that explains a failed import from core."""
    from_core = isinstance(error, ImportError) and (error.name or "").startswith("flow_core")
    declared = candidate.declared_api() if from_core else None
    if declared is not None:
        try:
            checked_api(candidate.origin, declared)
        except PluginError as newer:
            newer.__cause__ = error
            return newer
    return error


def _warn(text: str) -> None:
    warn(text, PluginWarning, user_line())


def _builtin_name(module: str) -> str:
    """Return ``core.numpy`` for ``flow_core.builtin.numpy_plugin``."""
    return f"core.{module.rpartition('.')[2].removesuffix('_plugin')}"


def _installed() -> Iterator[Candidate]:
    """Yield the entry points of the group, in an order that does not depend on the file system."""
    found = [_entry_candidate(entry) for entry in metadata.entry_points(group=GROUP)]
    yield from sorted(found, key=lambda c: (c.origin.plugin, c.origin.distribution))


def _entry_candidate(entry: metadata.EntryPoint) -> Candidate:
    owner = entry.dist
    name, version = (owner.name, owner.version) if owner else ("", "")
    return Candidate(
        Origin(entry.name, name, version, entry.module),
        partial(_entry_plugin, entry),
        listed=True,
        module=entry.module,
    )


def _entry_plugin(entry: metadata.EntryPoint) -> Any:
    """Load an entry point, and hide the frames of installed packages from users' errors.

    Frames of a plugin under development, outside of site-packages, stay visible.
    """
    plugin = entry.load()
    name = entry.module.partition(".")[0]
    package = sys.modules.get(name)
    file = getattr(package, "__file__", None) or ""
    if hasattr(package, "__path__") and {"site-packages", "dist-packages"} & {*Path(file).parts}:
        hide_frames(name)
    return plugin


def _extra_candidate(plugin: object) -> Candidate:
    if isinstance(plugin, str):
        return Candidate(
            Origin(plugin, module=plugin), partial(importlib.import_module, plugin), module=plugin
        )
    name = getattr(plugin, "__name__", None) or type(plugin).__name__
    return Candidate(Origin(name), lambda: plugin)


def _check_hook(
    origin: Origin, function: Callable[..., object], name: str, options: pluggy.HookimplOpts
) -> None:
    """Check that a hook exists, and that its implementation has no other arguments or wrapper."""
    hook = options.get("specname") or name
    known = hook_arguments()
    if hook not in known:
        if options.get("optionalhook"):
            return
        raise PluginResultError(
            f"hook {hook!r} of {origin}",
            found="no hook of that name",
            allowed=", ".join(known),
            hint=nearest(hook, known) or None,
        )
    if options.get("wrapper") or options.get("hookwrapper"):
        raise PluginResultError(
            f"hook {hook!r} of {origin}",
            found="a hook wrapper",
            allowed="plain functions: each plugin is called separately",
        )
    wrong = [p for p in inspect.signature(function).parameters.values() if _is_wrong(p, hook)]
    if wrong:
        raise PluginResultError(
            f"hook {hook!r} of {origin}",
            found=f"unknown arguments: {', '.join(map(str, wrong))}",
            allowed=f"{signature(hook)}, or fewer arguments, without defaults",
        )


def _is_wrong(parameter: inspect.Parameter, hook: str) -> bool:
    """Return whether a parameter is unknown or has a default, which pluggy would always use."""
    return parameter.name not in hook_arguments()[hook] or parameter.default is not parameter.empty


def _positional(
    function: Callable[..., object], takes: Sequence[str], given: Sequence[str]
) -> Callable[..., Any]:
    """Adapt a hook implementation to the full list of the hook's arguments."""
    if tuple(takes) == tuple(given):
        return function
    if tuple(takes) == tuple(given[:1]):
        return lambda first, *_: function(first)
    indices = [given.index(name) for name in takes]
    return lambda *arguments: function(*[arguments[i] for i in indices])


def load_plugins(settings: Settings | None = None, extra: Sequence[object] = ()) -> Registry:
    """Load flow-core's own plugins, installed plugins and ``extra`` plugins into a registry.

    Args:
        settings: the settings; by default, those of the environment variables.
        extra: modules, objects with hooks, or names of modules.

    Raises:
        PluginError: see `Host.load`.
    """
    return Host(settings or Settings.from_env(), extra).load()


class _Default:
    """The process's registry, loaded on first use."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.registry: Registry | None = None
        self.loading = False

    def get(self) -> Registry:
        if self.registry is None:
            with self.lock:
                if self.registry is None:
                    self.registry = self._load()
        return self.registry

    def _load(self) -> Registry:
        if self.loading:
            raise PluginError(
                "accessing the registry",
                found="access by a plugin while plugins are being loaded",
                hint="move the access from flow_register_... to the code that loads a kernel, "
                "driver or pass",
            )
        self.loading = True
        try:
            registry = load_plugins()
        finally:
            self.loading = False
        for failure in registry.failures:
            if not isinstance(failure.error, PluginConflictError):  # which has its own warning
                _warn(f"{failure}; programs run without it: see `flow doctor`")
        return registry


_default = _Default()


def default_registry() -> Registry:
    """Return the process's registry, loaded on first use with settings from the environment."""
    return _default.get()


def reset_default_registry() -> None:
    """Drop the process's registry, so that the next access loads it again (for tests)."""
    _default.registry = None
