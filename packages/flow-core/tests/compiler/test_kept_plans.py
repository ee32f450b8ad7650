"""Plans kept on disk are those that compilation would return; damaged files are replaced."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.decoding import Mismatch
from flow_core.base.disk_cache import CacheWarning, DiskCache
from flow_core.base.errors import DeviceUnavailableError, OutOfMemoryError
from flow_core.base.planning import planning
from flow_core.cli import doctor
from flow_core.compiler import kept_plans
from flow_core.compiler.compile import compile_plan
from flow_core.compiler.digest import plan_digest
from flow_core.compiler.kept_plans import Entry, decoded, encoded
from flow_core.compiler.limits import needed_bytes
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.job import host_fallback
from flow_core.frontend.job.plan_agreement import is_kept_by_all
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session, default_session
from flow_core.ir.graph import Attrs
from flow_core.plugins import machine
from flow_core.plugins.host import reset_default_registry
from flow_core.sharding.topology import Device

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = np.arange(8, dtype=np.int32) % 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Store plans in a temporary folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FLOW_PLAN_CACHE")
    restart()
    yield tmp_path / "flow-core" / "plans"
    monkeypatch.undo()
    restart()


def restart() -> None:
    """Replace the default session with one that reads the environment."""
    flow.clear_default_session()
    sessions._default[:] = [Session()]
    flow.config.cpu_device_num(4)


def train_job(devices: str = "0:0-3", **settings: Any) -> Any:
    config = flow.function_config()
    for name, value in settings.items():
        getattr(config, name)(value)
    weights = flow.random_normal_initializer(stddev=0.1)

    @flow.global_function("train", config)
    def train(
        x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            h = flow.layers.dense(
                x, 16, activation=flow.nn.relu, kernel_initializer=weights, name="hidden"
            )
            h = flow.nn.dropout(h, 0.5)
            h = flow.layers.dense(h, 3, kernel_initializer=weights, name="output")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
            flow.optimizer.Adam(0.1, do_bias_correction=True).minimize(loss)
            return loss

    return train


def predict_job() -> Any:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((8, 4))) -> tuple[tp.Numpy, tp.Numpy]:
        kernel = flow.get_variable("kernel", (4, 3), initializer=flow.ones_initializer())
        y = flow.matmul(x, kernel)
        return flow.nn.softmax(y), flow.math.reduce_max(y * float("inf"), axis=0)

    return predict


FORMS: dict[str, Callable[[], Any]] = {
    "predict": predict_job,
    "one device": lambda: train_job("0:0"),
    "four devices": train_job,
    "bfloat16": lambda: train_job(enable_auto_mixed_precision=True),
    "sharded states": lambda: train_job(
        optimizer_placement_optimization_mode="distributed_split",
        optimizer_placement_optimization_threshold=1,
    ),
    "optimal": lambda: train_job(sbp_selector="optimal"),
    "separate replicas": lambda: train_job(share_replicas=False),
}


def steps(job: Any) -> list[bytes]:
    """Return the bits of the results of three steps."""
    arguments = (X,) if job.kind == "predict" else (X, Y)
    found = [job(*arguments) for _ in range(3)]
    return [part.tobytes() for row in found for part in (row if isinstance(row, tuple) else (row,))]


@pytest.fixture
def no_compilation(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call jobs cannot be compiled to run."""

    def refuse(request: CompileRequest) -> Compiled:
        raise AssertionError(f"job {request.job!r} is compiled")

    return lambda: monkeypatch.setattr(host_fallback, "compile_plan", refuse)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_a_kept_plan_is_the_compiled_one(form: str, no_compilation: Callable[[], None]) -> None:
    job = FORMS[form]()
    bits, compiled = steps(job), job.compile()
    layouts, sharing = dict(default_session().layouts), dict(default_session().sharing)
    no_compilation()
    restart()
    again = FORMS[form]()
    assert steps(again) == bits
    kept = again.compile()
    assert kept.plan == compiled.plan
    assert repr(kept.plan.tasks) == repr(compiled.plan.tasks)  # tells 1, 1.0 and True apart
    assert (kept.inputs, kept.owners) == (compiled.inputs, compiled.owners)
    assert (default_session().layouts, default_session().sharing) == (layouts, sharing)
    assert plan_digest(kept) == plan_digest(compiled)
    assert kept.stages() is kept.stages()  # compiled once


def test_ops_without_kernels_run_on_the_cpu_again(
    monkeypatch: pytest.MonkeyPatch, no_compilation: Callable[[], None]
) -> None:
    restart()
    request = train_job("0:0").compile().request
    name = next(iter(request.graph.ops))
    hosted = {name: kept_plans.HostedOp("input", "gpu", request.graph.lines.get(name))}
    entry = Entry.of(request, 10**6)
    assert entry is not None
    compiled = kept_plans.compile_plan(request)
    entry.keep(replace(compiled, request=replace(request, hosted=hosted)))
    found = entry.find()
    assert found is not None
    assert found.request.hosted == hosted


def test_a_plan_that_is_not_data_is_not_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = train_job().compile()
    entry = Entry.of(compiled.request, 10**6)
    assert entry is not None
    shutil.rmtree(folder)
    task = compiled.plan.tasks[0]
    odd = replace(task, attrs=Attrs({**task.attrs, "odd": np.int64(1)}))
    entry.keep(replace(compiled, plan=replace(compiled.plan, tasks=(odd,))))
    assert "the plan of job 'train' is not kept: Object of type int64" in caplog.text
    assert not folder.exists()


# ----------------------------------------------------------------------------- damaged files


def rewritten(folder: Path, content: bytes) -> None:
    """Replace the content of the only entry; its digest is sound."""
    request = train_job().compile().request
    restart()
    entry = Entry.of(request, 10**6)
    assert entry is not None
    DiskCache(folder, ".json").write(entry.key, content)


def flipped(folder: Path) -> None:
    path = next(folder.iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swapped(folder: Path) -> None:
    own = next(folder.iterdir())
    train_job(random_seed=5).compile()
    restart()
    (other,) = [path for path in folder.iterdir() if path != own]
    other.replace(own)


def columns(folder: Path) -> Any:
    data = next(folder.iterdir()).read_bytes()
    return json.loads(data[: data.index(b"\nflow disk cache")])


def with_position(folder: Path) -> bytes:
    kept = decoded(json.dumps(columns(folder)).encode())
    task = replace(kept.plan.tasks[0], inputs=(10**6,))
    return encoded(replace(kept, plan=replace(kept.plan, tasks=(task, *kept.plan.tasks[1:]))))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flipped, "its digest differs"),
    "truncated": (lambda f: os.truncate(next(f.iterdir()), 1000), "it is incomplete"),
    "empty": (lambda f: os.truncate(next(f.iterdir()), 0), "it is incomplete"),
    "huge": (lambda f: os.truncate(next(f.iterdir()), 10**9), "it has 1,000,000,000 bytes"),
    "swapped": (swapped, "its digest differs"),
    "a pickle": (lambda f: rewritten(f, pickle.dumps([1])), "no JSON"),
    "nested": (lambda f: rewritten(f, b"[" * 10**5), "no JSON"),
    "of another version": (
        lambda f: rewritten(f, json.dumps([*columns(f), {"new": 1}]).encode()), "a list of 7"
    ),
    "with a foreign position": (lambda f: rewritten(f, with_position(f)), "position 1000000"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(
    damage: str, folder: Path, no_compilation: Callable[[], None]
) -> None:
    bits = steps(train_job())
    restart()
    change, reason = DAMAGES[damage]
    change(folder)
    with pytest.warns(CacheWarning, match=f"is not used and will be replaced: .*{reason}") as found:
        assert steps(train_job()) == bits
    assert len(found) == 1
    no_compilation()
    restart()
    assert steps(train_job()) == bits


CONTENT: list[bytes] = []


@given(st.data())
def test_mutated_contents_are_read_or_refused(data: st.DataObject) -> None:
    if not CONTENT:
        compiled = train_job().compile()
        parts = [compiled.plan, compiled.inputs, compiled.variables, compiled.shared]
        CONTENT.append(encoded(kept_plans.KeptPlan(*parts, compiled.owners, {})))  # type: ignore[arg-type]
    content = bytearray(CONTENT[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"-1", b"9" * 20, b"null", b'"', b"[]", b",", b"1e9"])
        )
    try:
        assert isinstance(decoded(bytes(content)), kept_plans.KeptPlan)
    except Mismatch:
        return


# ----------------------------------------------------------------------------- keys and limits


ENVIRONMENT = {
    "the budget of cores": ("ONEFLOW_CPU_THREADS", "3"),
    "the processor": ("OPENBLAS_CORETYPE", "Nehalem"),
    "a plugin": ("FLOW_DISABLE_PLUGINS", "flow-data,flow-onednn"),
}


def test_settings_of_a_job_are_in_the_key(folder: Path) -> None:
    for _ in range(2):
        train_job().compile()
        restart()
    assert len(files(folder)) == 1
    train_job(random_seed=3).compile()
    assert len(files(folder)) == 2


@pytest.mark.parametrize("change", ENVIRONMENT)
def test_the_environment_is_in_the_key(
    change: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_job().compile()
    monkeypatch.setenv(*ENVIRONMENT[change])
    reset_default_registry()
    restart()
    train_job().compile()
    monkeypatch.undo()
    reset_default_registry()
    assert len(files(folder)) == 2


@pytest.mark.parametrize("what", ["version", "sources"])
def test_versions_and_sources_of_plugins_are_in_the_key(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_job().compile()
    restart()
    if what == "version":
        registry = default_session().registry
        newer = [
            replace(record, origin=replace(record.origin, version="99"))
            if record.origin.plugin == "core.ops"
            else record
            for record in registry.plugins
        ]
        assert newer != list(registry.plugins)
        default_session().registry = replace(registry, plugins=tuple(newer))
    else:
        monkeypatch.setattr(machine, "_source_stamp", lambda package: f"another {package}")
    train_job().compile()
    assert len(files(folder)) == 2


def test_a_kept_plan_that_exceeds_the_limits_is_compiled_again() -> None:
    request = train_job().compile().request
    entry = Entry.of(request, 10**6)
    assert entry is not None
    assert entry.find() is not None
    compiled = entry.find()
    assert compiled is not None
    plan = compiled.plan
    held = sum(plan.buffers[i].type.nbytes for i in plan.variables.values())
    most = max(arena.nbytes for arena in plan.arenas) + held
    limits = {
        "arena": replace(request.limits, memory=lambda _: 64),
        "variables": replace(request.limits, memory=lambda _: most - held + 64),
        "machines": replace(request.limits, machines=0),
        "parts": replace(request.limits, held={"hidden-weight": {Device("cpu", 0, 1): ((0, 1),)}}),
    }
    for name, changed in limits.items():
        changed_entry = Entry.of(replace(request, limits=changed), 10**6)
        assert changed_entry is not None
        assert changed_entry.key == entry.key
        assert changed_entry.find() is None, name


def pipeline_request() -> CompileRequest:
    """Return the request of a job whose order depends on the limits of memory."""
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(6)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((6 * 8192, 12))) -> tp.Numpy:
        h: Any = x
        for i in range(9):
            with flow.scope.placement("cpu", f"0:{i // 3}"):
                w = flow.get_variable(f"w{i}", (12, 12), initializer=flow.ones_initializer())
                h = flow.math.tanh(flow.matmul(h, w))
        with flow.scope.placement("cpu", "0:2"):
            loss = flow.math.reduce_mean(h)
            flow.optimizer.SGD(0.1).minimize(loss)
            return loss

    return train.compile().request


def test_a_kept_order_is_that_of_the_limits() -> None:
    request = pipeline_request()
    fastest = compile_plan(request).plan
    size = max(needed_bytes(fastest).values())
    limits = [replace(request.limits, memory=lambda _, n=n: n) for n in (None, size, size - 1)]
    requests = [replace(request, limits=limit) for limit in limits]
    *roomy, tight = [compile_plan(wanted) for wanted in requests]
    assert [found.plan for found in roomy] == [fastest, fastest]
    assert [t.op for t in tight.plan.tasks] != [t.op for t in fastest.tasks]
    for answer, kept in ((roomy[0], [True, True, False]), (tight, [False, False, True])):
        entries = [Entry.of(wanted, 10**7) for wanted in requests]
        entries[0].keep(answer)
        found = [entry.find() for entry in entries]
        assert [entry is not None for entry in found] == kept
        (digest,) = {plan_digest(entry) for entry in found if entry is not None}
        assert digest == plan_digest(answer)


def test_memory_limits_are_refused_as_without_kept_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    train_job().compile()
    restart()
    monkeypatch.setattr(type(default_session()), "free_memory", lambda *_: 64)
    with pytest.raises(OutOfMemoryError):
        train_job().compile()


def test_a_missing_device_is_refused_as_without_kept_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_job().compile()
    restart()
    registry = default_session().registry

    def missing(*_: object) -> None:
        raise DeviceUnavailableError("using cpu:0", found="no device")

    monkeypatch.setattr(type(registry), "require_device", missing)
    with pytest.raises(DeviceUnavailableError):
        train_job().compile()


class Pair:
    """Two processes, of which the other one answers with a function of this one's data."""

    def __init__(self, other: Callable[[bytes], bytes]) -> None:
        self.other = other

    def gather(self, data: bytes, what: str) -> list[bytes]:
        return [data, self.other(data)]


def test_processes_use_kept_plans_if_all_have_equal_ones() -> None:
    job = train_job()
    kept, build = job.compile(), job.prepare().build
    agree: Callable[..., bool] = is_kept_by_all
    assert agree(Pair(lambda data: data), build, kept)
    assert not agree(Pair(lambda _: b"another plan"), build, kept)
    assert not agree(Pair(lambda _: b""), build, kept)
    assert not agree(Pair(lambda data: data), build, None)
    other = replace(kept, plan=replace(kept.plan, tasks=kept.plan.tasks[1:]))
    sent: list[bytes] = []
    for found in (kept, other):
        agree(Pair(lambda data: sent.append(data) or data), build, found)
    assert sent[0] != sent[1]


# ------------------------------------------------------------------------ folder and settings


def test_the_oldest_plans_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_job().compile()
    (first,) = folder.iterdir()
    size = first.stat().st_size
    os.utime(first, (1, 1))
    monkeypatch.setenv("FLOW_PLAN_CACHE", str(size * 9 // 2))
    for seed in range(1, 12):
        restart()
        train_job(random_seed=seed).compile()
        assert sum(path.stat().st_size for path in folder.iterdir()) <= size * 9 // 2
        assert folder.joinpath(first.name).exists() == (seed < 4)


def test_nothing_is_kept_if_plans_are_turned_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_PLAN_CACHE", "0")
    restart()
    steps(train_job())
    assert not folder.exists()


def test_a_folder_that_cannot_be_used_is_named_once(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("not a folder")
    with pytest.warns(CacheWarning, match="nothing can be kept in the cache folder"):
        bits = steps(train_job())
    restart()
    assert steps(train_job()) == bits


def test_plans_of_eager_mode_and_of_device_classes_are_not_kept(folder: Path) -> None:
    train_job().compile_classes()
    restart()
    flow.enable_eager_execution(True)
    steps(predict_job())
    assert not folder.exists() or not files(folder)


def test_planning_compiles_and_keeps(folder: Path) -> None:
    with planning():
        planned = train_job().compile()
    assert len(files(folder)) == 1
    assert len(planned.timings) > 5
    restart()
    with planning():
        again = train_job().compile()
    assert again.plan == planned.plan
    shutil.rmtree(folder)


def test_doctor_says_where_plans_are(folder: Path) -> None:
    train_job().compile()
    (path,) = folder.iterdir()
    tables = {table.title: table for table in doctor.diagnose(Settings.from_env({})).tables}
    assert tables["Plans on disk"].rows == (
        ("folder, which may be deleted", str(folder)),
        ("files", "1"),
        ("size", f"{path.stat().st_size:,} bytes"),
        ("largest size (FLOW_PLAN_CACHE)", "268,435,456 bytes"),
    )
