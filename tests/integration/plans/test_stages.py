"""Stages of a pipeline: on request, and as the form of a job that does not fit as it is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from launching import python, run_script
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import JobError
from flow_core.compiler.limits import needed_bytes
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.costs.links import Link, LinkModel
from flow_core.costs.model import CostModel, DeviceModel
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.forms.search import Search, Steps
from flow_core.frontend.job.forms.table import KINDS, MICRO, STAGES, STATES, consent
from flow_core.frontend.job.host_fallback import compile_with_fallback
from flow_core.frontend.session.session import default_session
from flow_core.observe.advise.report import advise, numbers_of
from flow_core.observe.memory.fit import fit, fit_tables
from flow_core.observe.tables import joined
from flow_core.sharding.topology import Device, Placement

INIT = flow.random_normal_initializer(stddev=0.1)
ROWS, WIDTH, LAYERS = 8, 32, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = RNG.integers(0, WIDTH, ROWS).astype(np.int32)
"""A batch that is small beside the weights."""


def layers(x: Any, tied: bool = False, **hints: Any) -> Any:
    weight: Any = None
    for i in range(LAYERS):
        if weight is None or not tied:
            weight = flow.get_variable(f"w{i}", (WIDTH, WIDTH), initializer=INIT, **hints)
        x = flow.math.tanh(flow.matmul(x, weight, name=f"product{i}"))
    return x


def perceptron(
    devices: str = "0:0-3", tied: bool = False, hint: Any = None, **settings: Any
) -> Any:
    config = flow.function_config()
    config.share_replicas(False)
    for name, value in settings.items():
        target = config.train if name == "num_gradient_accumulation_steps" else config
        getattr(target, name)(value)

    @flow.global_function(type="train", function_config=config)
    def train(
        x: tp.Numpy.Placeholder((ROWS, WIDTH)),
        y: tp.Numpy.Placeholder((ROWS,), flow.int32),
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            scores = layers(x, tied, **({} if hint is None else {"distribute": hint}))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, scores)
            flow.optimizer.Adam(1e-2, do_bias_correction=True).minimize(loss)
        return loss

    return train


def predictor(devices: str = "0:0-3") -> Any:
    config = flow.function_config()
    config.share_replicas(False)

    @flow.global_function(function_config=config)
    def predict(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            return layers(x)

    return predict


def peak(compiled: Compiled) -> int:
    return max(n for device, n in needed_bytes(compiled.plan).items() if device.type == "gpu")


def losses(job: Any, steps: int = 3) -> Any:
    return np.stack([job(X, Y) for _ in range(steps)])


@pytest.fixture(scope="module")
def whole() -> tuple[int, Any]:
    """The bytes that a device needs for the job as it is, and the losses on one device."""
    with emulated(4):
        needed = peak(perceptron().compile())
    with emulated(1):
        return needed, losses(perceptron("0:0"))


# ------------------------------------------------------------------------------------- on request


@pytest.mark.parametrize(("devices", "stages"), [("0:0-1", 2), ("0:0-3", 2), ("0:0-3", 4)])
@pytest.mark.parametrize("parts", [1, 4])
def test_stages_give_the_losses_of_one_device(
    devices: str, stages: int, parts: int, whole: tuple[int, Any]
) -> None:
    with emulated(4):
        job = perceptron(devices, pipeline_stages=stages, num_gradient_accumulation_steps=parts)
        found = losses(job)
        places = {op.placement for op in job.compile().logical.of_type("variable")}
        weights = {p for p in places if p.device_type == "gpu"}
    np.testing.assert_allclose(found, whole[1], rtol=1e-5, atol=1e-6)
    assert len(weights) == stages
    assert sum(place.size for place in weights) == Placement.parse("gpu", devices).size


def test_each_stage_has_its_part_of_the_memory(whole: tuple[int, Any]) -> None:
    with emulated(4):
        assert peak(perceptron(pipeline_stages=4).compile()) < whole[0] / 3


def test_devices_with_fast_links_are_in_one_stage() -> None:
    slow = LinkModel((Link("pair", "2 devices", 1e-6, 1e11), Link("network", "all", 1e-4, 1e8)))
    with emulated(4):
        default_session().costs = CostModel(links=slow)
        job = perceptron("0:0,0:2,0:1,0:3", pipeline_stages=2)
        stages = job.prepare().build.stages
    assert [str(stage.placement) for stage in stages] == ["gpu[0:0-1]", "gpu[0:2-3]"]
    assert str(stages[0]).startswith("gpu[0:0-1]: 'product0' at ")
    assert f"{Path(__file__).name}:" in str(stages[1])


@pytest.mark.parametrize(
    ("stages", "tied", "found"),
    [
        (3, False, r"its ops on gpu\[0:0-3\]"),
        (4, True, "fewer places at which it can be cut"),
    ],
)
def test_jobs_that_cannot_be_divided(stages: int, tied: bool, found: str) -> None:
    with emulated(4), pytest.raises(JobError, match=found) as error:
        perceptron(pipeline_stages=stages, tied=tied).compile()
    assert f"(at {__file__}:" in str(error.value).splitlines()[0]


def test_jobs_that_place_their_layers() -> None:
    with emulated(4):
        config = flow.function_config()
        config.pipeline_stages(2)

        @flow.global_function(function_config=config)
        def placed(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
            with flow.scope.placement("gpu", "0:0-1"):
                x = layers(x)
            with flow.scope.placement("gpu", "0:2"):
                return flow.math.tanh(x)

        with pytest.raises(JobError, match=r"placements of their own: 'w0' at .* 'tanh"):
            placed.compile()


@pytest.mark.parametrize("first", ["train", "predict"])
def test_other_jobs_read_the_weights_where_they_are(first: str) -> None:
    found = []
    for settings in ({}, {"pipeline_stages": 2}):
        with emulated(4):
            train, predict = perceptron(**settings), predictor()
            before = predict(X) if first == "predict" else None
            train(X, Y)
            found.append(predict(X))
            assert before is None or not np.allclose(before, found[-1])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------- in the search


@pytest.mark.slow
@pytest.mark.parametrize(("search", "part"), [("on", 0.6), ("micro_batches", 0.35)])
def test_a_network_of_large_weights_fits_in_stages(
    part: float, search: str, whole: tuple[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    limit = int(part * whole[0])
    with emulated(4, memory=limit):
        job = perceptron(memory_search=search)
        found, compiled = losses(job), job.compile()
    searched = compiled.searched
    assert searched is not None
    stages = len(searched.stages)
    assert stages in ((2, 4) if part > 0.5 else (4,))
    assert peak(compiled) <= limit
    np.testing.assert_allclose(found, whole[1], rtol=1e-5, atol=1e-6)
    assert f"{stages} stages" in caplog.text
    rows = dict(searched.rows())
    assert "'product0' at" in rows["stage 1"]
    assert "stages of a pipeline" in rows["forms searched"]
    assert f"function_config.pipeline_stages({stages})" in searched.how


def test_which_jobs_can_be_divided() -> None:
    with emulated(4):
        job = perceptron()
        build = job.traced_with(job.config).source.build
        assert consent(build, STAGES) == ""
        levels = range(1, len(STAGES.levels) + 1)
        assert [n for n in levels if STAGES.changed(build, n)] == [1, 2]  # not into 8
        job.config.sbp_selector("greedy")
        assert "sbp_selector" in consent(job.traced_with(job.config).source.build, STAGES)
        for stages in (1, 2):
            job.config.pipeline_stages(stages)
            build = job.traced_with(job.config).source.build
            assert not any(STAGES.changed(build, n) for n in levels)


def search_under(limit: int, compiled: Any = compile_with_fallback, **settings: Any) -> Search:
    job = perceptron(**settings)
    variant = job.traced_with(job.config)

    def request(source: Any) -> Any:
        found = compile_request(source.build, source.values, source.inputs)
        limits = replace(found.limits, memory=lambda d: limit if d.type == "gpu" else None)
        return replace(found, limits=limits)

    steps = Steps(lambda *form: variant.in_form(*form).source, request, compiled)
    return Search(variant.source, steps)


STAGE, PARTS = KINDS.index(STAGES), KINDS.index(MICRO)


def levels_of(stages: int, micro: int = 0) -> tuple[int, ...]:
    return tuple({STAGE: stages, PARTS: micro}.get(i, 0) for i in range(len(KINDS)))


def test_a_form_has_the_bytes_of_the_plan_that_fits() -> None:
    """Without limits, a pipeline may have another order, which needs more memory."""
    limit = 1 << 20

    def compiled(request: CompileRequest) -> Compiled:
        found = compile_with_fallback(request)
        if request.limits.memory(Device("gpu", 0, 0)) is not None:
            return found
        arenas = tuple(replace(arena, nbytes=2 * limit) for arena in found.plan.arenas)
        return replace(found, plan=replace(found.plan, arenas=arenas))

    with emulated(4):
        form = search_under(limit, compiled, num_gradient_accumulation_steps=2).form(levels_of(0))
    assert form is not None
    assert form.fits
    assert form.nbytes <= limit


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_bounds_are_below_the_times_of_forms(stages: int, whole: tuple[int, Any]) -> None:
    with emulated(4):
        search = search_under(whole[0])
        search.run((), 1.0)  # without micro-batches
        plain = search.form(levels_of(stages))
        assert plain is not None
        bounds = [search._least_of(plain.levels, traced) for traced in (False, True)]
        assert 0 < bounds[0] <= bounds[1] <= plain.seconds
        for micro in (1, 2):
            form = search.form(levels_of(stages, micro))
            assert form is not None
            assert plain.busiest <= form.seconds


@pytest.mark.slow
def test_what_fits_in_stages_only(whole: tuple[int, Any]) -> None:
    """Hints forbid other layouts, and the weights are too small for states in parts."""
    found = []
    for kinds in (set(KINDS) - {STAGES}, set(KINDS)):
        with emulated(4):
            hint = flow.distribute.broadcast()
            search = search_under(whole[0] // 2, hint=hint, memory_search="micro_batches")
            found.append(search.run(kinds, 1e6))
    assert found[0] is None
    assert found[1] is not None
    assert found[1].levels[STAGE]


def test_stages_that_cannot_be_faster_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arithmetic of a stage is on the devices of the stage, one stage after the other."""
    with emulated(4):
        search = search_under(1 << 40)
        monkeypatch.setattr(search, "_least_of", lambda levels, traced=False: 1.0 * levels[STAGE])
        best = search.run(KINDS, 1e6)
    assert best is not None
    assert not any(form.levels[STAGE] for form in search.tried)
    assert search.left == 0


def test_slow_links_make_stages_the_fastest_form(whole: tuple[int, Any]) -> None:
    """Four machines: other forms send weights or gradients, stages activations of a few rows."""
    slow = LinkModel((Link("machine", "1 devices", 0.0, 1e11), Link("network", "all", 1e-6, 1e6)))
    with emulated(4):
        default_session().costs = CostModel(links=slow)
        search = search_under(1 << 40)
        best = search.run((STAGES, STATES), 1e6)
    assert best is not None
    assert best.levels[STAGE]
    assert best.seconds < 0.9 * min(f.seconds for f in search.tried if not f.levels[STAGE])


def test_micro_batches_let_stages_overlap() -> None:
    """They are tried although the job fits, since they make it faster."""
    slow = DeviceModel(flops=1e7, bandwidth=1e12, held=0.0, launch=1e-9)
    with emulated(2):
        default_session().costs = CostModel(devices={"cpu": slow})
        search = search_under(1 << 40, devices="0:0-1", pipeline_stages=2)
        best = search.run((MICRO,), 1e6)
    assert best is not None
    assert best.levels[PARTS]
    assert best.seconds < 0.8 * search.tried[0].seconds


@pytest.mark.slow
def test_fit_names_the_stages(whole: tuple[int, Any]) -> None:
    """A job for one device, on four."""
    limit = int(0.35 * whole[0])
    with emulated(4):
        found = fit(perceptron("0:0"), limit, devices=4)
        assert default_session().layouts == {}
    (form,) = (form for form in found.forms if form.changes == ("4 stages",))
    assert form.fits
    assert len(form.stages) == 4
    best = replace(found, forms=(found.forms[0], form))
    text = joined(fit_tables(best, 200))
    assert "function_config.pipeline_stages(4)" in text
    assert "stage 4 on gpu[0:3]: 'product3' at" in text
    with emulated(4):
        assert peak(perceptron(pipeline_stages=4).compile()) == form.nbytes


def test_micro_batches_that_the_job_does_not_have_are_noted_once() -> None:
    """A batch of 8 rows has no 16 micro-batches."""
    with emulated(4):
        search = search_under(1 << 40)
        for stages in range(3):
            assert search.form(levels_of(stages, 4)) is None
    assert [note.split(":")[0] for note in search.notes] == ["16 micro-batches"]


@pytest.mark.slow
def test_advice() -> None:
    described = CostModel(devices={"gpu": DeviceModel()})
    with emulated(4):
        default_session().costs = described
        found = advise(perceptron())
        options = {option.name: option for option in (*found.options, *found.others)}
    with emulated(4):
        default_session().costs = described
        seconds = numbers_of(perceptron(pipeline_stages=2)).seconds
    assert options["2 stages"].numbers.seconds == seconds
    assert "config.pipeline_stages(2)" in options["2 stages"].edit.code


@pytest.mark.slow
def test_jobs_after_a_form_in_stages(whole: tuple[int, Any]) -> None:
    """Other jobs read the weights on their stages; a job that holds them elsewhere forbids it."""
    found = []
    for memory in (None, int(0.6 * whole[0])):
        with emulated(4, memory=memory):
            train, predict = perceptron(), predictor()
            train(X, Y)
            assert (train.compile().searched is not None) == (memory is not None)
            found.append(predict(X))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def program(processes_: int, *arguments: str, memory: str = "") -> str:
    """Run the program on four devices in some processes; return what it prints."""
    script = Path(__file__).parents[2] / "helpers" / "programs" / "run_in_stages.py"
    limits = {"ONEFLOW_EMULATE_GPUS": "4", "ONEFLOW_EMULATE_GPU_MEMORY": memory}
    limits = {name: value for name, value in limits.items() if value}
    if processes_ > 1:
        done = run_script(processes_, script, *arguments, **limits)
    else:
        done = processes.run(python(script, *arguments), env={**os.environ, **limits})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.slow
def test_processes_divide_a_job_alike() -> None:
    """Two processes, each with the devices of one stage, and one device."""
    one, *many = program(1, "0:0"), program(1, "0:0-3", "2"), program(2, "0:0-3", "2")
    assert many == [one, one]


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.slow
def test_processes_agree_on_stages() -> None:
    one, two = (program(count, "0:0-3", memory="26000") for count in (1, 2))
    assert two == one
    assert "4 stages" in one
