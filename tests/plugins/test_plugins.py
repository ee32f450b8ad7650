"""Every row of the failure table, with real packages in processes of their own."""

from __future__ import annotations

from typing import Any

import pytest

Site = Any

QUERY = """
from flow_core.base.dtypes import float32
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import KernelQuery
t = tensor_type((2,), float32)
query = KernelQuery("cube", {}, (t,), (t,))
"""
FAILURES = "for f in registry.failures: print(f.plugin, f.distribution, f.version, f.stage, f)\n"


def test_a_good_plugin_is_registered_and_stays_lazy(site: Site) -> None:
    out = site.install("good").python(
        QUERY + "import sys\n"
        "print(registry.ops['cube'].type, registry.find_kernel(query, 'cpu').name)\n"
        "print(registry.find_kernel(query, 'cubes').name, registry.probe('cubes'))\n"
        "print('kernels' if 'flow_cubes.kernels' in sys.modules else 'lazy')\n"
        "print(registry.origins['ops', 'cube'])\n" + FAILURES
    )
    assert out.splitlines() == [
        "cube cubes.cube",
        "cubes.cube Available(count=3, note='made of cubes')",
        "lazy",
        "plugin 'cubes' of flow-cubes 1.2.3",
    ]


def test_a_good_plugin_passes_the_kits(site: Site) -> None:
    pytest.importorskip("flow_core.testing")
    site.install("good").python(
        "import numpy as np\n"
        "from flow_core.base.dtypes import float32, float64\n"
        "from flow_core.testing.checks import check_gradient, check_kernel\n"
        "spec = registry.ops['cube']\n"
        "(kernel,) = registry.kernels('cube', 'cpu')\n"
        "for sample in spec.samples(np.random.default_rng(0)):\n"
        "    check_kernel(spec, kernel, sample, float32)\n"
        "    check_kernel(spec, kernel, sample, float64)\n"
        "    check_gradient(registry.ops, spec, sample)\n"
    )


@pytest.mark.slow
def test_a_plugin_that_raises_at_import_is_isolated_and_quoted(site: Site) -> None:
    site.install("good", "raises_at_import")
    out = site.python("print('cube' in registry.ops)\n" + FAILURES)
    first, second = out.splitlines()
    assert first == "True"
    assert second.startswith("raises-at-import flow-raises-at-import 0.1 import ")
    assert "libcubes.so.3" in second
    error = site.error(QUERY + "registry.find_kernel(query, 'abacus')")
    assert "KernelNotFoundError" in error
    assert "flow-raises-at-import 0.1" in error
    assert "libcubes.so.3" in error
    doctor = site.flow("doctor")
    assert doctor.returncode == 1
    assert "libcubes.so.3" in doctor.stdout


def test_a_plugin_that_raises_in_a_hook_leaves_nothing(site: Site) -> None:
    site.install("good", "raises_in_hook")
    out = site.python(
        "print('cube' in registry.ops, 'half_registered' in registry.ops)\n" + FAILURES
    )
    assert out.startswith("True False\nraises-in-hook flow-raises-in-hook 0.2")
    assert "flow_register_kernels" in out
    assert "no cube today" in out


@pytest.mark.representative(
    "raises_in_hook|wrong_api", "an error of the plugin, and one of its declaration"
)
@pytest.mark.parametrize("name", ["raises_at_import", "raises_in_hook", "wrong_api", "missing_api",
                                  "wrong_result", "unknown_argument"])  # fmt: skip
def test_strict_raises_at_once(site: Site, name: str) -> None:
    error = site.install(name).error(FLOW_PLUGIN_STRICT="1")
    assert f"flow-{name.replace('_', '-')} 0." in error or name.replace("_", "-") in error
    assert "Error: " in error


@pytest.mark.slow
def test_an_unavailable_device_is_no_failure(site: Site) -> None:
    site.install("no_device")
    assert site.python(FAILURES, FLOW_PLUGIN_STRICT="1") == ""
    error = site.error("registry.require_device('abacus')")
    for part in (
        "DeviceUnavailableError",
        "'abacus'",
        "plugin 'no-device' of flow-no-device 0.10",
        "the abacus has no beads",
        "buy beads",
    ):
        assert part in error
    doctor = site.flow("doctor").stdout
    assert "the abacus has no beads" in doctor
    assert "problem: plugin" not in doctor


@pytest.mark.slow
@pytest.mark.representative(r"\[duplicate_kernel-", "kernels, whose names have a part per package")
@pytest.mark.parametrize(
    ("name", "version", "what"),
    [("duplicate_op", "0.5", "op 'cube'"), ("duplicate_kernel", "0.6", "kernel 'cubes.cube'")],
)
def test_duplicates_name_both_distributions(site: Site, name: str, version: str, what: str) -> None:
    site.install("good", name)
    dashed = name.replace("_", "-")
    own = f"plugin '{dashed}' of flow-{dashed} {version} "
    done = site.run("-c", "from flow_core.plugins.host import load_plugins; load_plugins()")
    assert done.returncode == 0
    doctor = site.flow("doctor")
    assert doctor.returncode == 1
    for text in (done.stderr, doctor.stdout):
        for part in (own, "flow-cubes 1.2.3", what, "FLOW_DISABLE_PLUGINS"):
            assert part in text
    assert "PluginWarning" in done.stderr
    assert "PluginConflictError" in site.error(FLOW_PLUGIN_STRICT="1")
    loaded = "print(registry.find_kernel(query, 'cpu').name, *registry.failures)"
    assert site.python(QUERY + loaded).startswith(f"cubes.cube {own}failed (conflict)")
    assert site.python("print('cube' in registry.ops)", FLOW_DISABLE_PLUGINS=dashed) == "True\n"


def test_another_major_names_both_numbers_and_the_install_line(site: Site) -> None:
    out = site.install("wrong_api").python(FAILURES)
    for part in ("flow-wrong-api 0.3 api", "2.1", "1.0", "uv pip install --upgrade flow-core"):
        assert part in out


def test_a_missing_version_is_named(site: Site) -> None:
    out = site.install("missing_api").python(FAILURES)
    for part in ("no FLOW_PLUGIN_API", "1.0", "uv pip install --upgrade flow-missing-api"):
        assert part in out


def test_wrong_results_say_hook_plugin_expected_and_found(site: Site) -> None:
    out = site.install("wrong_result").python(FAILURES)
    for part in ("PluginResultError", "flow_register_ops", "wrong-result", "'cube'", "OpSpec"):
        assert part in out


def test_unknown_arguments_say_hook_plugin_expected_and_found(site: Site) -> None:
    out = site.install("unknown_argument").python(FAILURES)
    for part in ("PluginResultError", "unknown-argument", "session", "flow_register_ops(config)"):
        assert part in out


def test_a_pass_of_a_cycle_is_named_and_not_used(site: Site) -> None:
    site.install("cyclic_order")
    out = site.python(
        "print('egg' in {spec.name for spec in registry.passes})\n"
        "for record in registry.plugins: print(*record.refused)\n"
    )
    for part in ("False", "flow_register_passes", "flow-cyclic-order 0.9", "egg before chicken"):
        assert part in out


ORIGINS = """
others = [r for r in registry.plugins if not r.origin.plugin.startswith("core.")]
print(*(f"{r.origin.plugin}:{r.state}" for r in others))
"""


@pytest.mark.slow
def test_flow_plugins_is_an_allow_list(site: Site) -> None:
    site.install("good", "no_device")
    assert "cubes:not allowed" in site.python(ORIGINS, FLOW_PLUGINS="no-device")
    assert "no-device:loaded" in site.python(ORIGINS, FLOW_PLUGINS="no-device")
    assert "cubes:loaded" in site.python(ORIGINS, FLOW_PLUGINS="flow-cubes")
    everything = site.python(ORIGINS, FLOW_PLUGINS=None)
    assert {"cubes:loaded", "no-device:loaded"} <= set(everything.split())
    assert "loaded" not in site.python(ORIGINS, FLOW_PLUGINS="")


@pytest.mark.slow
def test_a_name_in_flow_plugins_that_is_not_installed_is_a_failure(site: Site) -> None:
    out = site.install("good").python(FAILURES, FLOW_PLUGINS="cube")
    assert "which FLOW_PLUGINS names" in out
    assert "did you mean cubes?" in out


@pytest.mark.slow
@pytest.mark.representative(r"\[Flow_Cubes\]", "the name of the distribution in other letters")
@pytest.mark.parametrize("name", ["cubes", "flow-cubes", "Flow_Cubes"])
def test_flow_disable_plugins(site: Site, name: str) -> None:
    assert "cubes:disabled" in site.install("good").python(ORIGINS, FLOW_DISABLE_PLUGINS=name)


@pytest.mark.slow
def test_flow_trace_plugins(site: Site) -> None:
    done = site.install("good").run(
        "-c", "from flow_core.plugins.host import load_plugins; load_plugins()",
        FLOW_TRACE_PLUGINS="1",
    )  # fmt: skip
    assert "plugin 'cubes' of flow-cubes 1.2.3: flow_register_ops -> 1" in done.stderr
    quiet = site.run("-c", "from flow_core.plugins.host import load_plugins; load_plugins()")
    assert not quiet.stderr


def test_order_of_loading_does_not_depend_on_the_file_system(site: Site) -> None:
    names = ["no_device", "good", "cyclic_order", "bad_command"]
    site.install(*names)
    out = site.python(ORIGINS, FLOW_DISABLE_PLUGINS="cyclic-order")
    assert out.index("bad-command") < out.index("cubes") < out.index("no-device")


def test_two_distributions_with_one_plugin_name(site: Site) -> None:
    site.install("good").write_metadata("other-cubes", "9.9", {"cubes": "flow_cubes.plugin"}, [])
    out = site.python(QUERY + "print(registry.find_kernel(query, 'cpu').name)\n" + FAILURES)
    for part in ("cubes.cube", "PluginConflictError", "flow-cubes 1.2.3", "other-cubes 9.9"):
        assert part in out


@pytest.mark.slow
def test_emulated_gpus_come_from_the_setting(site: Site) -> None:
    assert "ONEFLOW_EMULATE_GPUS=1" in site.error("registry.require_device('gpu')", FLOW_PLUGINS="")
    out = site.python("print(registry.probe('gpu'))", ONEFLOW_EMULATE_GPUS="2", FLOW_PLUGINS=None)
    assert out == "Available(count=2, note='emulated on the CPU')\n"
