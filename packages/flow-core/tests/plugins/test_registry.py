"""Registry lookups and their errors."""

from __future__ import annotations

import dataclasses
import importlib.util
import threading
import types
from collections.abc import Iterable
from typing import Any

import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float32, int32
from flow_core.base.errors import (
    DeviceUnavailableError,
    KernelNotFoundError,
    PluginError,
    PluginResultError,
    SourceLine,
)
from flow_core.builtin.null_driver import NullDriver
from flow_core.ir.graph import tensor_type
from flow_core.ops.rules import like_input
from flow_core.plugins.host import Host
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import (
    Available,
    BoxingSpec,
    DeviceSpec,
    KernelQuery,
    KernelSpec,
    OpSpec,
    Unavailable,
)
from flow_core.sharding.topology import Device

LINE = SourceLine("train.py", 12)
CUBE = OpSpec("cube", ("x",), like_input)


def module(name: str, **hooks: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(FLOW_PLUGIN_API="1.0", **hooks)
    return made


def load(*plugins: object, **settings: Any) -> Registry:
    return Host(Settings(plugins=(), **settings), plugins, builtins=()).load()


def registry_of(
    kernels: Iterable[KernelSpec], devices: Iterable[DeviceSpec] | None = None, **settings: Any
) -> Registry:
    own = module(
        "own",
        flow_register_ops=lambda: [CUBE],
        flow_register_kernels=lambda: kernels,
        flow_register_devices=lambda: [device("cpu")] if devices is None else devices,
    )
    return load(own, **settings)


def kernel(name: str, priority: int = 0, op: str = "cube", device: str = "cpu", **more: Any) -> Any:
    return KernelSpec(op, device, "a:b", priority=priority, name=name, **more)


def device(type_: str, count: int = 1, **more: Any) -> DeviceSpec:
    return DeviceSpec(type_, lambda: Available(count), NullDriver, **more)


def query(dtype: Any = float32) -> KernelQuery:
    return KernelQuery("cube", {}, (tensor_type((2,), dtype),), (tensor_type((2,), dtype),))


def floats(asked: KernelQuery) -> bool:
    return asked.dtypes[0].is_floating


def test_highest_accepting_priority_wins() -> None:
    registry = registry_of(
        [kernel("slow"), kernel("fast", 5, accepts=floats), kernel("never", 9, accepts=lambda _: 0)]
    )
    assert [spec.name for spec in registry.kernels("cube", "cpu")] == ["never", "fast", "slow"]
    assert registry.find_kernel(query(), "cpu").name == "fast"
    assert registry.find_kernel(query(int32), "cpu").name == "slow"


def test_order_is_independent_of_registration() -> None:
    specs = [kernel("b", accepts=floats), kernel("a", accepts=floats), kernel("plain")]
    names = [
        [spec.name for spec in registry_of(some).kernels("cube", "cpu")]
        for some in (specs, specs[::-1])
    ]
    assert names == [["a", "b", "plain"]] * 2


def test_kernels_for_any_op_come_last() -> None:
    registry = registry_of([kernel("any", op="*"), kernel("own")])
    assert [spec.name for spec in registry.kernels("cube", "cpu")] == ["own", "any"]
    assert [spec.name for spec in registry.kernels("other", "cpu")] == ["any"]
    assert registry.kernels("cube", "gpu") == ()


def test_device_type_may_borrow_kernels() -> None:
    registry = registry_of([kernel("own")], [device("gpu", kernels="cpu"), device("cpu")])
    assert registry.find_kernel(query(), "gpu").name == "own"


def test_borrowing_device_type_ignores_kernels_for_the_real_device() -> None:
    cuda = module("cuda", flow_register_kernels=lambda: [kernel("cuda", 10, device="gpu")])
    stand_in = module(
        "stand-in",
        flow_register_ops=lambda: [CUBE],
        flow_register_devices=lambda: [device("gpu", kernels="cpu"), device("cpu")],
        flow_register_kernels=lambda: [kernel("numpy"), kernel("special", 1, device="gpu")],
    )
    registry = load(cuda, stand_in)
    assert [spec.name for spec in registry.kernels("cube", "gpu")] == ["special", "numpy"]


def broken() -> None:
    raise ImportError("libcube.so.3 is missing")


def test_no_kernel_error_lists_candidates_devices_and_failures() -> None:
    own = module(
        "own",
        flow_register_ops=lambda: [CUBE],
        flow_register_kernels=lambda: [
            kernel("own.cube", 3, accepts=floats),
            kernel("gpu.cube", device="gpu"),
        ],
        flow_register_devices=lambda: [device("cpu"), device("gpu"), device("tpu")],
    )
    registry = load(own, module("cubes", flow_register_kernels=broken))
    with pytest.raises(KernelNotFoundError) as caught:
        registry.find_kernel(query(int32), "cpu", LINE)
    text = str(caught.value)
    assert caught.value.at == LINE
    assert "'cube' on device type 'cpu' (at train.py:12)" in text
    assert "int32[2] -> int32[2]" in text
    assert "'own.cube' (plugin 'own', priority 3): its predicate rejects" in text
    assert "device types with a kernel: gpu" in text
    assert "tpu" not in text
    assert "libcube.so.3 is missing" in text


def test_no_kernel_at_all() -> None:
    with pytest.raises(KernelNotFoundError) as caught:
        registry_of([]).find_kernel(query(), "cpu")
    assert "no kernel is registered" in str(caught.value.found)
    assert "none" in str(caught.value.allowed)
    assert "flow doctor" in str(caught.value.hint)


def test_raising_predicate_is_named() -> None:
    registry = registry_of([kernel("bad", accepts=lambda asked: asked.nothing)])
    with pytest.raises(PluginError, match=r"`accepts` of kernel 'bad' of op 'cube' .* 'own'"):
        registry.find_kernel(query(), "cpu")


def test_registry_is_frozen() -> None:
    registry = registry_of([])
    with pytest.raises(dataclasses.FrozenInstanceError):
        registry.passes = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        registry.devices["cpu"] = device("cpu")  # type: ignore[index]


def test_probes_run_once() -> None:
    calls: list[int] = []

    def probe() -> Available:
        calls.append(1)
        return Available(2)

    registry = registry_of([], [DeviceSpec("cpu", probe, "math:sqrt")])
    assert not calls
    assert registry.probe("cpu") == registry.probe("cpu") == Available(2)
    assert len(calls) == 1


def test_raising_probe_is_a_reason() -> None:
    def probe() -> Available:
        raise OSError("no such library")

    found = registry_of([], [DeviceSpec("cpu", probe, "math:sqrt")]).probe("cpu")
    assert isinstance(found, Unavailable)
    assert "OSError: no such library" in found.reason


def test_hanging_probe_is_abandoned_and_named() -> None:
    stop, probes = threading.Event(), []

    def hang() -> Unavailable:
        probes.append(1)
        stop.wait()
        return Unavailable("it was stopped")

    hangs = DeviceSpec("abacus", hang, NullDriver)
    registry = registry_of([], [device("cpu"), hangs], probe_seconds=0.2)
    with pytest.raises(DeviceUnavailableError, match="abacus") as caught:
        registry.require_device("abacus")
    assert registry.require_device("cpu")
    unavailable(registry, "abacuss")  # an unrelated error, which lists the available devices
    assert len(probes) == 1
    stop.set()
    assert "did not return within 0.2 seconds" in str(caught.value.found)
    assert "provided by plugin 'own'" in caught.value.attempted
    assert "FLOW_PROBE_SECONDS" in str(caught.value.hint)
    assert "FLOW_DISABLE_PLUGINS=own" in str(caught.value.hint)


def test_probe_result_of_wrong_type_is_an_error() -> None:
    registry = registry_of([], [DeviceSpec("cpu", lambda: 3, "math:sqrt")])
    with pytest.raises(PluginResultError, match="Available or Unavailable"):
        registry.probe("cpu")


def unavailable(registry: Registry, device_type: str = "gpu", count: int = 1) -> str:
    with pytest.raises(DeviceUnavailableError) as caught:
        registry.require_device(device_type, count, LINE)
    assert "train.py:12" in str(caught.value)
    return str(caught.value)


def test_gpu_without_a_plugin() -> None:
    text = unavailable(registry_of([], [device("cpu")]))
    installed = importlib.util.find_spec("flow_cuda") is not None
    why = ("FLOW_PLUGINS does not name it",) if installed else ("not installed", "uv pip install")
    for part in ("'gpu'", "flow-cuda", *why, "ONEFLOW_EMULATE_GPUS=1", "cpu"):
        assert part in text


def test_unavailable_gpu() -> None:
    spec = DeviceSpec("gpu", lambda: Unavailable("no driver", "install one"), "math:sqrt")
    text = unavailable(registry_of([], [spec]))
    for part in ("no driver", "install one", "plugin 'own'", "ONEFLOW_EMULATE_GPUS=1"):
        assert part in text


def test_too_few_devices() -> None:
    text = unavailable(registry_of([], [device("gpu", 2)]), count=4)
    assert "using 4 devices" in text
    assert "2 available" in text
    assert "ONEFLOW_EMULATE_GPUS=4" in text


def test_unknown_device_type() -> None:
    text = unavailable(registry_of([], [device("cpu")]), "cpuu")
    assert "no plugin registers this type" in text
    assert "did you mean cpu?" in text
    assert "EMULATE" not in text


def test_driver_of_a_device() -> None:
    driver = registry_of([], [device("cpu", 5)]).driver(Device("cpu", 0, 4))
    assert isinstance(driver, NullDriver)
    with pytest.raises(DeviceUnavailableError):
        registry_of([], [device("cpu", 4)]).driver(Device("cpu", 0, 4))


def boxing(name: str) -> BoxingSpec:
    return BoxingSpec(name, "P", "B", ("cpu",), "a:b", "a:c")


def test_last_plugin_chooses_the_boxing_first() -> None:
    registry = load(
        module("one", flow_choose_boxing=lambda candidates: candidates[0].name),
        module("two", flow_choose_boxing=lambda src: "b" if src == "P" else None),
    )
    candidates = [boxing("a"), boxing("b")]
    assert registry.choose_boxing("P", "B", None, candidates) == "b"
    assert registry.choose_boxing("S", "B", None, candidates) == "a"
    assert load().choose_boxing("S", "B", None, candidates) is None


def test_chosen_boxing_must_be_a_candidate() -> None:
    registry = load(module("one", flow_choose_boxing=lambda: "z"))
    with pytest.raises(PluginResultError, match="None or one of a"):
        registry.choose_boxing("P", "B", None, [boxing("a")])
