"""The plugin host: accepted and rejected plugins, and its error messages."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import flow_core
from flow_core.base import errors
from flow_core.base.config import Settings
from flow_core.base.errors import (
    PluginConflictError,
    PluginError,
    PluginOrderError,
    PluginResultError,
    PluginWarning,
)
from flow_core.ops.rules import like_input
from flow_core.plugins import host
from flow_core.plugins.exporters import ExporterSpec
from flow_core.plugins.hookspecs import hook_arguments, hookimpl
from flow_core.plugins.host import Host
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import (
    BoxingSpec,
    CommSpec,
    DeviceSpec,
    FormatSpec,
    KernelSpec,
    OpSpec,
    PassSpec,
    ReaderSpec,
)

ALONE = Settings(plugins=())
CUBE = OpSpec("cube", ("x",), like_input)


def plugin(name: str, api: object = "1.0", **hooks: Callable[..., Any]) -> types.ModuleType:
    """Return a module with hooks."""
    module = types.ModuleType(name)
    if api is not None:
        module.FLOW_PLUGIN_API = api  # type: ignore[attr-defined]
    vars(module).update(hooks)
    return module


def load(*plugins: object, settings: Settings = ALONE) -> Registry:
    return Host(settings, plugins, builtins=()).load()


def states(registry: Registry) -> dict[str, str]:
    """Return the load states, except for installed plugins, which `ALONE` excludes."""
    records = (r for r in registry.plugins if r.state != "not allowed")
    return {record.origin.plugin: record.state for record in records}


def failure(bad: object) -> BaseException:
    """Return the error that isolates a plugin; check that a valid plugin beside it is loaded."""
    registry = load(plugin("good", flow_register_ops=lambda: [CUBE]), bad)
    assert list(registry.ops) == ["cube"]
    (found,) = registry.failures
    assert states(registry) == {"good": "loaded", found.plugin: "failed"}
    return found.error


def test_hook_markers_are_optional_and_hooks_may_take_fewer_arguments() -> None:
    def flow_register_ops(config: Settings) -> list[OpSpec]:
        assert config is ALONE
        return [CUBE]

    marked = plugin("marked", flow_register_ops=hookimpl(flow_register_ops))
    bare = plugin("bare", flow_register_readers=lambda: (ReaderSpec("tar", "tars:Reader"),))
    registry = load(marked, bare)
    assert registry.ops["cube"].inputs == CUBE.inputs
    assert list(registry.readers) == ["tar"]
    assert registry.origins["readers", "tar"].plugin == "bare"


def test_plugin_may_be_an_object_or_a_module_name() -> None:
    class Cubes:
        FLOW_PLUGIN_API = "1.0"

        def flow_register_ops(self, config: Settings) -> list[OpSpec]:
            return [CUBE]

    registry = load(Cubes(), "flow_core.builtin.null_plugin")
    assert list(registry.ops) == ["cube"]
    assert list(registry.devices) == ["null"]


@pytest.mark.parametrize("result", [None, (), [], iter(())])
def test_hook_may_return_nothing(result: object) -> None:
    registry = load(plugin("empty", flow_register_ops=lambda: result))
    assert states(registry) == {"empty": "loaded"}


@pytest.mark.parametrize(
    ("hook", "result", "found", "allowed"),
    [
        ("flow_register_ops", CUBE, "OpSpec", "an iterable of OpSpec"),
        ("flow_register_ops", "cube", "a str", "an iterable of OpSpec"),
        ("flow_register_ops", [CUBE, 3], "element 1 is 3 (a int)", "OpSpec"),
        ("flow_register_kernels", [CUBE], "element 0", "KernelSpec"),
        ("flow_register_ops", [OpSpec("", ("x",), like_input)], "OpSpec.type", "non-empty"),
        ("flow_register_kernels", [KernelSpec("a", "cpu", "nowhere")], "load", "module:attribute"),
        ("flow_register_devices", [DeviceSpec("a", None, "a:b")], "probe", "callable"),  # type: ignore[arg-type]
        (
            "flow_register_devices",
            [DeviceSpec("a", "a:b", "a:c", host_fallback="on")],
            "host_fallback is 'on'",
            "one of off, warn, silent",
        ),
        ("flow_register_passes", [PassSpec("a", "late", "a:B")], "'late'", "logical, train, lower"),
        ("flow_register_checkpoint_formats", [FormatSpec("a", "x", "a:b")], "can_open", "callable"),  # type: ignore[arg-type]
        ("flow_register_exporters", [ExporterSpec("a", "write")], "load", "module:attribute"),
        ("flow_register_ops", [OpSpec("a", "x", like_input)], "inputs is 'x'", "a tuple of texts"),  # type: ignore[arg-type]
        ("flow_register_ops", [OpSpec("a", ("x",), like_input, work=3)], "work", "or None"),  # type: ignore[arg-type]
        ("flow_register_kernels", [KernelSpec("a", "cpu", "a:b", True)], "accepts", "None"),  # type: ignore[arg-type]
        ("flow_register_kernels", [KernelSpec("a", "cpu", "a:b", None, "")], "priority", "integer"),  # type: ignore[arg-type]
        ("flow_register_comms", [CommSpec("a", "cpu", "a:b", "a:c")], "device_types", "a tuple"),  # type: ignore[arg-type]
        ("flow_register_passes", [PassSpec("a", "logical", "a:b", after="dce")], "after", "tuple"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_hook_results(hook: str, result: object, found: str, allowed: str) -> None:
    error = failure(plugin("bad", **{hook: lambda: result}))
    assert isinstance(error, PluginResultError)
    assert hook in error.attempted
    assert "'bad'" in error.attempted
    assert found in str(error.found)
    assert allowed in str(error.allowed)


def test_unknown_hook_error_suggests_the_nearest() -> None:
    error = failure(plugin("bad", flow_register_opps=lambda config: []))
    assert isinstance(error, PluginResultError)
    assert "flow_register_opps" in error.attempted
    assert "flow_register_ops" in str(error.hint)


@pytest.mark.parametrize(
    "hook",
    [
        lambda config, speed: [],
        lambda config=None: [],
        lambda *args: [],
        lambda **options: [],
    ],
)
def test_unknown_hook_arguments_are_rejected(hook: Callable[..., Any]) -> None:
    error = failure(plugin("bad", flow_register_ops=hook))
    assert isinstance(error, PluginResultError)
    assert "unknown arguments" in str(error.found)
    assert "flow_register_ops(config)" in str(error.allowed)


def test_hook_wrappers_are_rejected() -> None:
    def wrapper(config: Settings) -> Any:
        return (yield)

    error = failure(plugin("bad", flow_register_ops=hookimpl(wrapper=True)(wrapper)))
    assert isinstance(error, PluginResultError)
    assert "wrapper" in str(error.found)


@pytest.mark.parametrize("api", ["2.0", "0.9", "10.0", "1.7"])
def test_other_version_error_names_both_versions_and_the_install_command(api: str) -> None:
    error = failure(plugin("bad", api=api))
    assert isinstance(error, PluginError)
    assert api in str(error.found)
    assert "plugin API 1.0" in str(error.allowed)


@pytest.mark.parametrize("api", [None, 1.0, "one", "1"])
def test_missing_or_malformed_version_is_rejected(api: object) -> None:
    error = failure(plugin("bad", api=api, flow_register_ops=lambda: [CUBE]))
    assert isinstance(error, PluginError)
    assert "FLOW_PLUGIN_API" in str(error.found)


NEWER = "FLOW_PLUGIN_API = '1.7'\nfrom flow_core.authoring.specs import CubeSpec\n"


@pytest.mark.parametrize(
    ("source", "line", "parts"),
    [
        (NEWER, 0, ("checking the plugin API", "FLOW_PLUGIN_API = '1.7'", "plugin API 1.0",
                    "uv pip install --upgrade flow-core")),
        (NEWER.replace("1.7", "1.0"), 2, ("cannot import name 'CubeSpec'",)),
        ("import math\n\nimport no_cubes\n", 3, ("No module named 'no_cubes'",)),
        ("x = 1\ndef f(:\n", 2, ("SyntaxError", "invalid syntax")),
        ("def f():\n    raise OSError('libcubes')\nf()\n", 2, ("OSError: libcubes",)),
        ("FLOW_PLUGIN_API = '1.0'\ndef flow_register_ops():\n    return 1 / 0\n", 3,
         ("flow_register_ops", "ZeroDivisionError")),
    ],
)  # fmt: skip
def test_failures_name_file_and_line_of_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: int, parts: tuple[str, ...]
) -> None:
    name = f"broken_{abs(hash(source))}"
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    registry = load(name)
    (found,) = registry.failures
    assert states(registry) == {name: "failed"}
    for part in parts:
        assert part in str(found)
    assert (f"(at {file}:{line})" in str(found)) == bool(line)


def test_kernels_of_unknown_ops_and_device_types_are_refused() -> None:
    kernels = [
        KernelSpec("cube", "cpu", "a:b", name="good"),
        KernelSpec("cubee", "cpu", "a:b", name="typo"),
        KernelSpec("cube", "cpuu", "a:b"),
        KernelSpec("*", "cpu", "a:b", name="any"),
        KernelSpec("cube", "gpu", "a:b", name="elsewhere"),
    ]
    own = plugin(
        "own",
        flow_register_ops=lambda: [CUBE],
        flow_register_devices=lambda: [
            DeviceSpec("cpu", "a:b", "a:c"),
            DeviceSpec("toy", "a:b", "a:c", kernels="cpuuu"),
        ],
        flow_register_kernels=lambda: [*kernels, KernelSpec("cube", "toy", "a:b")],
    )
    with pytest.warns(PluginWarning, match="records are not used(.|\n)*and 3 more"):
        registry = load(own)
    assert [k.name for k in registry.kernels("cube", "cpu")] == ["good", "any"]
    assert [k.name for k in registry.kernels("cube", "gpu")] == ["elsewhere"]
    assert list(registry.devices) == ["cpu"]
    (record,) = (r for r in registry.plugins if r.state == "loaded")
    texts = [str(error) for error in record.refused]
    for refused, (what, name, hint) in zip(
        texts,
        [
            ("device 'toy'", "device type 'cpuuu'", "did you mean cpu?"),
            ("kernel 'typo' of op 'cubee'", "op 'cubee'", "did you mean cube?"),
            ("kernel of op 'cube' on device type 'cpuu'", "'cpuu'", "did you mean cpu?"),
            ("kernel of op 'cube' on device type 'toy'", "device type 'toy'", "flow doctor"),
        ],
        strict=True,
    ):
        assert f"registering {what}" in refused
        assert "plugin 'own'" in refused
        assert f"{name}\n" in refused
        assert hint in refused
    strict = Settings(plugins=(), plugin_strict=True)
    with pytest.raises(PluginError, match="cpuuu"):
        load(own, settings=strict)


def test_failing_hook_registers_nothing() -> None:
    def fails() -> list[ReaderSpec]:
        raise ValueError("no cubes today")

    half = plugin(
        "half",
        flow_register_ops=lambda: [OpSpec("half", ("x",), like_input)],
        flow_register_readers=fails,
        flow_plan_ready=lambda plan: None,
    )
    registry = load(half)
    assert not registry.ops
    assert not registry.observers("flow_plan_ready")
    (found,) = registry.failures
    assert (found.plugin, found.stage) == ("half", "flow_register_readers")
    assert "no cubes today" in found.traceback
    assert "no cubes today" in str(found)


def test_system_exit_in_a_plugin_is_a_failure() -> None:
    def leaves() -> None:
        raise SystemExit(3)

    assert isinstance(failure(plugin("bad", flow_register_passes=leaves)), SystemExit)


def test_strict_mode_raises_immediately() -> None:
    def fails() -> None:
        raise ValueError("no cubes today")

    strict = Settings(plugins=(), plugin_strict=True)
    with pytest.raises(PluginError, match="no cubes today") as caught:
        load(plugin("bad", flow_register_ops=fails), settings=strict)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(PluginResultError):
        load(plugin("bad", flow_register_ops=lambda: 3), settings=strict)


def test_core_is_never_isolated() -> None:
    with pytest.raises(PluginError, match="no_such_plugin"):
        Host(ALONE, builtins=("flow_core.builtin.no_such_plugin",)).load()


def conflict(*plugins: types.ModuleType) -> PluginConflictError:
    """Return the error that disables the last plugin; the others stay loaded."""
    with pytest.warns(PluginWarning, match=f"plugin '{plugins[-1].__name__}' is not used"):
        registry = load(*plugins)
    (found,) = registry.failures
    assert found.stage == "conflict" or "already loaded" in str(found.error)
    assert list(states(registry).values()) == ["loaded"] * (len(states(registry)) - 1) + ["failed"]
    assert isinstance(found.error, PluginConflictError)
    return found.error


@pytest.mark.parametrize(
    ("hook", "spec"),
    [
        ("flow_register_ops", CUBE),
        ("flow_register_devices", DeviceSpec("cubes", "a:b", "a:c")),
        ("flow_register_passes", PassSpec("cubes", "logical", "a:b")),
        ("flow_register_checkpoint_formats", FormatSpec("cubes", bool, "a:b")),
        ("flow_register_exporters", ExporterSpec("cubes", "a:b")),
        ("flow_register_readers", ReaderSpec("cubes", "a:b")),
        ("flow_register_boxing", BoxingSpec("cubes", "P", "B", ("cpu",), "a:b", "a:c")),
    ],
)
def test_duplicate_registration_names_both_plugins(hook: str, spec: object) -> None:
    first, second = (plugin(name, **{hook: lambda: [spec]}) for name in ("first", "second"))
    error = conflict(first, second)
    assert "'first'" in str(error.found)
    assert "'second'" in error.attempted
    assert "FLOW_DISABLE_PLUGINS=second or =first" in str(error.hint)
    assert not load(
        first, second, settings=Settings(plugins=(), disabled_plugins=("first",))
    ).failures


def test_duplicate_within_one_plugin() -> None:
    error = conflict(plugin("one", flow_register_ops=lambda: [CUBE, CUBE]))
    assert "'one'" in str(error.found)


def test_two_plugins_with_one_name() -> None:
    assert "already loaded" in str(conflict(plugin("same"), plugin("same")).found)


def never(_: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("first", "second", "is_conflict"),
    [
        (KernelSpec("a", "cpu", "x:y"), KernelSpec("a", "cpu", "x:z"), True),
        (KernelSpec("a", "cpu", "x:y", name="p"), KernelSpec("a", "cpu", "x:z", name="q"), True),
        (KernelSpec("a", "cpu", "x:y", never), KernelSpec("a", "cpu", "x:z", never), True),
        (KernelSpec("a", "cpu", "x:y"), KernelSpec("a", "cpu", "x:z", never, name="q"), False),
        (KernelSpec("a", "cpu", "x:y"), KernelSpec("a", "cpu", "x:z", priority=1), False),
        (KernelSpec("a", "cpu", "x:y"), KernelSpec("a", "gpu", "x:z"), False),
        (KernelSpec("a", "cpu", "x:y"), KernelSpec("b", "cpu", "x:z"), False),
    ],
)
def test_kernel_conflicts(first: KernelSpec, second: KernelSpec, is_conflict: bool) -> None:
    one = plugin(
        "one",
        flow_register_ops=lambda: [OpSpec(name, ("x",), like_input) for name in "ab"],
        flow_register_devices=lambda: [DeviceSpec("cpu", "a:b", "a:c")],
        flow_register_kernels=lambda: [first],
    )
    two = plugin("two", flow_register_kernels=lambda: [second])
    if is_conflict:
        assert "priority" in str(conflict(one, two).hint)
        return
    assert not load(one, two).failures


def a_pass(name: str, stage: str = "logical", **order: tuple[str, ...]) -> PassSpec:
    return PassSpec(name, stage, "a:b", **order)


def order(*passes: PassSpec) -> list[str]:
    registry = load(plugin("passes", flow_register_passes=lambda: passes))
    return [spec.name for spec in registry.passes]


def test_passes_are_ordered_by_stage_then_constraints_then_registration() -> None:
    names = order(
        a_pass("z", "lower"),
        a_pass("b", after=("c",)),
        a_pass("c"),
        a_pass("a"),
        a_pass("d", before=("c",), after=("unknown",)),
        a_pass("t", "train"),
    )
    assert names == ["a", "d", "c", "b", "t", "z"]


def refused_order(*plugins: object) -> tuple[list[str], list[str]]:
    """Return the names of the passes that are used, and the errors of those that are not."""
    with pytest.warns(PluginWarning, match="records are not used"):
        registry = load(*plugins)
    errors = [str(error) for record in registry.plugins for error in record.refused]
    return [spec.name for spec in registry.passes], errors


def test_the_last_registered_pass_of_a_cycle_is_refused() -> None:
    one = plugin("one", flow_register_passes=lambda: [a_pass("a", before=("b",)), a_pass("x")])
    two = plugin(
        "two",
        flow_register_passes=lambda: [a_pass("b", before=("a",)), a_pass("c", after=("b",))],
    )
    names, (error,) = refused_order(one, two)
    assert names == ["a", "x", "c"]
    assert "ordering pass 'b'" in error
    assert "a before b before a" in error or "b before a before b" in error
    assert "'one'" in error
    assert "FLOW_DISABLE_PLUGINS=two" in error
    with pytest.raises(PluginOrderError, match="a cycle"):
        load(one, two, settings=Settings(plugins=(), plugin_strict=True))


def test_each_of_several_cycles_loses_a_pass() -> None:
    own = plugin(
        "own",
        flow_register_passes=lambda: [
            a_pass("a", after=("a",)),
            a_pass("b", after=("d",)),
            a_pass("c", after=("b",)),
            a_pass("d", after=("c",)),
            a_pass("e", "lower", before=("f",)),
            a_pass("f", "lower", before=("e",)),
        ],
    )
    names, errors = refused_order(own)
    assert names == ["b", "c", "e"]
    assert ["a before a" in errors[0], len(errors)] == [True, 3]


def test_constraints_across_stages_are_refused() -> None:
    own = plugin(
        "own",
        flow_register_passes=lambda: [a_pass("a", before=("b",)), a_pass("b", "lower")],
    )
    names, (error,) = refused_order(own)
    assert names == ["b"]
    assert "'lower'" in error


def test_flow_plugins_names_that_are_not_installed() -> None:
    registry = load(settings=Settings(plugins=("no-such-plugin",)))
    (found,) = registry.failures
    assert (found.plugin, found.stage) == ("no-such-plugin", "find")


def test_late_hooks_get_the_arguments_they_accept(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    registry = load(
        plugin("all", flow_step_finished=lambda step, stats: seen.append((step, stats))),
        plugin("one", flow_step_finished=lambda stats: seen.append(stats)),
        plugin("none", flow_step_finished=lambda: seen.append(())),
    )
    for observer in registry.observers("flow_step_finished"):
        observer(7, "fast")
    assert seen == [(), "fast", (7, "fast")]
    assert not capsys.readouterr().err


def test_trace_reports_plugin_events(capsys: pytest.CaptureFixture[str]) -> None:
    traced = Settings(plugins=(), trace_plugins=True)
    one = plugin("one", flow_register_ops=lambda: [CUBE], flow_doctor=lambda: ["fine"])
    registry = load(one, plugin("two", api="9.0"), settings=traced)
    registry.calls["flow_doctor"][0].call(traced)
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("flow.plugins: ") for line in lines)
    assert any("'one': flow_register_ops -> 1" in line for line in lines)
    assert any("'two' failed (api)" in line for line in lines)
    assert any("flow_doctor -> ['fine']" in line for line in lines)


def test_records_count_registrations() -> None:
    registry = load(plugin("one", flow_register_ops=lambda: [CUBE]))
    (record,) = (r for r in registry.plugins if r.state == "loaded")
    assert (record.origin.plugin, record.counts) == ("one", {"ops": 1})


def test_every_hook_is_either_registering_or_late() -> None:
    registering = {kind.hook for kind in host.KINDS}
    later = set(load().calls)
    assert registering | later == set(hook_arguments())
    assert not registering & later


def test_default_registry_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Registry] = []

    def count() -> Registry:
        loads.append(load())
        return loads[-1]

    monkeypatch.setattr(host, "load_plugins", count)
    monkeypatch.setattr(host, "_default", host._Default())
    assert host.default_registry() is host.default_registry()
    assert len(loads) == 1
    host.reset_default_registry()
    assert host.default_registry() is loads[1]


def test_requesting_the_registry_while_it_loads_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asks() -> None:
        host.default_registry()

    monkeypatch.setattr(host, "_default", host._Default())
    monkeypatch.setattr(host, "load_plugins", lambda: load(plugin("bad", flow_register_ops=asks)))
    with pytest.warns(PluginWarning, match=r"plugin 'bad' failed .*programs run without it"):
        registry = host.default_registry()
    assert "while plugins are being loaded" in str(*registry.failures)
    assert host.default_registry() is registry  # which warns once


def test_importing_the_host_creates_no_manager() -> None:
    import pluggy

    modules = [value for value in vars(flow_core.plugins).values() if isinstance(value, type(host))]
    owned = [v for m in modules for v in vars(m).values() if isinstance(v, pluggy.PluginManager)]
    assert host in modules
    assert not owned


@pytest.mark.parametrize(("folder", "is_users"), [("site-packages", False), ("mine", True)])
def test_user_lines_exclude_installed_plugins(
    folder: str, is_users: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"flow_lines_{folder.replace('-', '_')}"
    package = tmp_path / folder / name
    package.mkdir(parents=True)
    text = "from flow_core.base.errors import user_line\n\n\ndef where():\n    return user_line()\n"
    (package / "__init__.py").write_text(text)
    (package / "plugin.py").write_text('FLOW_PLUGIN_API = "1.0"\n')
    monkeypatch.syspath_prepend(str(package.parent))
    entry = metadata.EntryPoint("lines", f"{name}.plugin", host.GROUP)
    monkeypatch.setattr(errors, "_packages", [*errors._packages])
    monkeypatch.setattr(errors, "_own_files", {})
    plugin = host._entry_candidate(entry).load()
    assert plugin.FLOW_PLUGIN_API == "1.0"
    line = importlib.import_module(name).where()
    assert line.file == str(package / "__init__.py" if is_users else __file__)
