"""``flow fit``: what a step holds in memory, and the forms of a job that fit."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from parallel_forms import emulated
from processes import run

import oneflow as flow
import oneflow.typing as tp
from flow_core.base import planning
from flow_core.base.errors import JobError
from flow_core.cli.app import cli
from flow_core.frontend.session.session import default_session
from flow_core.observe.memory.fit import Fit, fit, fit_tables
from flow_core.observe.memory.parts import (
    ACTIVATIONS,
    GAPS,
    GRADIENTS,
    INPUTS,
    KINDS,
    STATES,
    WEIGHTS,
)
from flow_core.observe.tables import joined
from flow_core.sharding.topology import Device

MIB = 1 << 20
INIT = flow.random_normal_initializer(stddev=0.1)
LARGE = 1 << 40


def network(x: Any) -> Any:
    for i in range(6):
        x = flow.layers.dense(x, x.shape[1], flow.math.tanh, kernel_initializer=INIT, name=f"l{i}")
    return flow.math.reduce_mean(flow.math.square(x))


def train_job(batch: int = 1024, devices: str = "0:0", width: int = 64, **settings: Any) -> Any:
    config = flow.function_config()
    for name, value in settings.items():
        getattr(config, name)(value)

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.Numpy.Placeholder((batch, width))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            loss = network(x)
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
        return loss

    return train


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what a script that is planned, and the command, change in this process."""
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def fitted(limit: int = LARGE, over: int | None = None, **options: Any) -> Fit:
    with emulated(4):
        return fit(train_job(**options), limit, over)


# ------------------------------------------------------------------------------------ contents


def test_kinds_and_lines_of_what_a_step_holds() -> None:
    memory = fitted().memory
    kinds = memory.by_kind()
    assert sum(kinds.values()) == memory.nbytes == memory.arena + memory.variables
    assert list(kinds) == [kind for kind in KINDS if kind in kinds]
    weights = 6 * (64 * 64 + 64) * 4
    assert kinds[WEIGHTS] == weights
    assert 2 * weights <= kinds[STATES] <= 2 * weights + 1024
    assert 5 * 1024 * 64 * 4 <= kinds[ACTIVATIONS] <= 8 * 1024 * 64 * 4
    assert kinds[INPUTS] >= 1024 * 64 * 4
    assert kinds[GRADIENTS] > 0
    largest_last = reversed(memory.parts)
    lines = {part.kind: part.line for part in largest_last if part.kind != GAPS}
    assert all(Path(__file__).name in line for line in lines.values())
    assert lines[WEIGHTS] != lines[STATES]


def test_a_job_without_training_has_no_gradients() -> None:
    with emulated(1):

        @flow.global_function()
        def predict(x: tp.Numpy.Placeholder((256, 64))) -> tp.Numpy:
            return network(x)

        kinds = fit(predict, LARGE).memory.by_kind()
    assert kinds[WEIGHTS] == 6 * (64 * 64 + 64) * 4
    assert kinds[ACTIVATIONS] > 0
    assert not kinds.keys() & {STATES, GRADIENTS}


def test_weights_in_parts_count_where_they_are_gathered() -> None:
    with emulated(4):
        mode = "distributed_split"
        job = train_job(8, "0:0-3", optimizer_placement_optimization_mode=mode)
        memory = fit(job, LARGE).memory
    held = [part for part in memory.parts if part.kind == WEIGHTS]
    own = [part for part in held if "/box" not in part.name]
    assert memory.nbytes == sum(part.nbytes for part in memory.parts)
    assert sum(part.nbytes for part in own) < sum(part.nbytes for part in held)


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
def test_a_run_allocates_what_is_predicted(devices: str) -> None:
    with emulated(4):
        found = fit(train_job(devices=devices), LARGE)
    with emulated(4, memory=LARGE):
        train_job(devices=devices)(np.ones((1024, 64), np.float32))
        taken = {
            index: LARGE - (default_session().free_memory(Device("gpu", 0, index)) or 0)
            for index in range(4)
        }
    assert max(taken.values()) == pytest.approx(found.memory.nbytes, abs=64 * 64)
    assert found.memory.device == f"gpu:0:{max(taken, key=taken.__getitem__)}"


# --------------------------------------------------------------------------------------- forms


def test_weights_gathered_layer_by_layer_are_a_form() -> None:
    found = fitted(1, batch=8, devices="0:0-3", width=512, pipeline_stages=1)
    parts, layers = "weights and optimizer states in parts", "weights gathered layer by layer"
    once, freed = ([f for f in found.forms if f.changes == c] for c in ((parts,), (parts, layers)))
    weight = 4 * 512 * 512
    assert freed[0].nbytes < once[0].nbytes - 2 * weight
    assert "function_config.optimizer_placement_optimization_ahead(1)" in freed[0].how


def test_a_job_that_fits_is_not_compiled_in_other_forms() -> None:
    found = fitted()
    assert found.ok
    assert [form.changes for form in found.forms] == [()]
    assert "more than" not in joined(fit_tables(found))


def test_each_form_that_fits_does_fit_when_the_program_has_it() -> None:
    needed = fitted().memory.nbytes
    limit = needed * 3 // 4
    found = fitted(limit)
    forms = {form.changes: form for form in found.forms if form.fits}
    assert not found.forms[0].fits
    assert found.ok
    fewer = next(form for names, form in forms.items() if names == ("2 micro-batches",))
    assert fewer.how == ("function_config.train.num_gradient_accumulation_steps(2)",)
    times = [form.seconds for form in forms.values()]
    assert times == sorted(times)
    with emulated(1, memory=limit):
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(2)

        @flow.global_function(type="train", function_config=config)
        def train(x: tp.Numpy.Placeholder((1024, 64))) -> tp.Numpy:
            loss = network(x)
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
            return loss

        train(np.ones((1024, 64), np.float32))
        free = default_session().free_memory(Device("gpu", 0, 0))
    assert free is not None
    assert limit - free == pytest.approx(fewer.nbytes, abs=64 * 64)


def test_activations_computed_again_cost_time() -> None:
    found = fitted(fitted().memory.nbytes * 3 // 4)
    again = next(f for f in found.forms if f.changes == ("activations computed again",))
    assert again.seconds > found.forms[0].seconds
    assert again.nbytes < found.forms[0].nbytes


def test_no_form_fits() -> None:
    found = fitted(1000)
    assert not found.ok
    assert "no form that was tried fits" in joined(fit_tables(found))


@pytest.mark.slow
def test_a_job_that_fits_with_other_layouts() -> None:
    """It chooses them by itself; the report says so."""
    job: dict[str, Any] = {"devices": "0:0-3", "width": 512, "sbp_selector": "optimal"}
    roomy = fitted(**job)
    tight = fitted(roomy.memory.nbytes - 64, **job)
    (form,) = (f for f in tight.forms if f.changes == ("layouts chosen for less memory",))
    assert form.fits
    assert form.nbytes < roomy.memory.nbytes
    assert form.settings == ()
    assert "or none of it: a call of the job takes the fastest form" in joined(
        fit_tables(tight, 200)
    )


@pytest.mark.slow
def test_states_in_parts_on_several_devices() -> None:
    job = {"batch": 8, "devices": "0:0-3", "sbp_selector": "greedy"}
    found = fitted(fitted(**job).memory.nbytes // 2, **job)
    (form,) = (f for f in found.forms if f.changes == ("weights and optimizer states in parts",))
    assert form.fits
    assert form.variables < found.memory.variables // 2


def test_a_loss_that_micro_batches_would_change_is_not_split() -> None:
    with emulated(1):

        @flow.global_function(type="train")
        def train(x: tp.Numpy.Placeholder((64, 64))) -> tp.Numpy:
            loss = flow.math.square(flow.math.reduce_sum(network(x) * flow.math.reduce_max(x)))
            flow.optimizer.SGD(0.1).minimize(loss)
            return loss

        found = fit(train, fit(train, LARGE).memory.nbytes * 9 // 10)
    assert not any("micro-batches" in name for form in found.forms for name in form.changes)
    assert "micro-batches: " in found.notes[0]


@pytest.mark.slow
def test_the_job_and_its_session_do_not_change() -> None:
    with emulated(4), warnings.catch_warnings(record=True):
        job = train_job(devices="0:0-3")
        fit(job, 1000)
        session = default_session()
        assert job.compiled is None
        assert (session.layouts, session.sharing, session.declared) == ({}, {}, {})


def test_another_number_of_devices() -> None:
    found = fitted(over=2)
    assert found.devices == ("gpu:0:0", "gpu:0:1")
    with pytest.raises(JobError, match="placed on 4 devices"), emulated(4):
        fit(train_job(devices="0:0-3"), LARGE, 2)


# ------------------------------------------------------------------------------------- command

PROGRAM = """
import oneflow as flow
import oneflow.typing as tp

glorot = flow.glorot_uniform_initializer()


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((256, 64))) -> tp.Numpy:
    for i in range(4):
        x = flow.layers.dense(x, 64, flow.math.tanh, kernel_initializer=glorot, name=f"l{i}")
    loss = flow.math.reduce_mean(flow.math.square(x))
    flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
    return loss
"""


def flow_fit(*arguments: object) -> Result:
    with emulated(1):
        return CliRunner().invoke(cli, ["fit", *map(str, arguments)])


@pytest.mark.slow
def test_a_measured_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("(256, 64)", "(1 << 14, 64)"))
    # in a process of its own: memory that earlier tests have freed would not grow again
    command = (sys.executable, "-m", "flow_core.cli", "fit", "--memory=1TiB", "--measure", "--json")
    measured = json.loads(run((*command, script), check=True).stdout)["measured"]
    assert measured["allocated"] == measured["arenas"] < measured["predicted"]
    if sys.platform == "linux":
        assert 0.8 < measured["resident"] / measured["predicted"] < 1.2


def test_the_command(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    roomy = flow_fit("--memory", "1GiB", script)
    assert roomy.exit_code == 0, roomy.output
    assert "train job 'train'" in roomy.output
    tight = flow_fit("--memory", "300KiB", "--json", f"{script}:train")
    found = json.loads(tight.output)
    assert (tight.exit_code, found["ok"]) == (0, True)
    assert found["limit"] == 300 * 1024
    assert sum(found["memory"]["by_kind"].values()) == found["memory"]["nbytes"] > 300 * 1024
    assert any(form["fits"] for form in found["forms"])
    assert flow_fit("--memory", "1KiB", script).exit_code == 1
    wrong = flow_fit("--memory", "much", script)
    assert wrong.exit_code == 1
    assert "--memory" in wrong.output
