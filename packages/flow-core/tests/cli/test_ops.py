"""`flow ops`: what is known of each op, and what a device type has and lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import plain_device
import pytest
from click.testing import CliRunner

import oneflow as flow
from flow_core.base.errors import FlowError, PluginError
from flow_core.cli import op_reports
from flow_core.cli.app import cli
from flow_core.cli.job_ops import LABELS, ROWS, _network, needed_ops
from flow_core.observe.op_catalog import catalog, device_types, op_entry, sample_types
from flow_core.plugins.host import default_registry
from flow_core.plugins.registry import Registry

NEEDED = needed_ops(default_registry())


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["ops", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A device type with kernels of the ops of prediction only, and of `exp`."""
    ops = {op for op, kind in NEEDED.items() if kind == "predict"} | {"exp"}
    registry = plain_device.registry(set(default_registry().ops) - ops)
    monkeypatch.setattr(op_reports, "default_registry", lambda: registry)
    return registry


@pytest.mark.slow
def test_all_ops_are_listed() -> None:
    rows = [line.split()[0] for line in run().splitlines()[2:] if line.strip()]
    assert rows == sorted(default_registry().ops)
    data = json.loads(run("--json"))
    assert data["schema"] == 1
    assert [entry["type"] for entry in data["ops"]] == rows


def test_one_op_in_full() -> None:
    text = run("matmul")
    spec = default_registry().ops["matmul"]
    for expected in (*spec.attrs, "(S(0), B) -> S(0)", "(S(1), S(0)) -> P", "numpy.matmul"):
        assert expected in text
    (data,) = json.loads(run("matmul", "--json"))["ops"]
    assert data["inputs"] == ["a", "b"]
    assert data["attrs"]["alpha"] == "1.0"
    assert "float16" in data["types"]
    assert data["gradient"] is True
    assert [k["plugin"] for k in data["kernels"]["cpu"]] == ["core.numpy"]


def test_rules_are_stated_for_attributes_and_types() -> None:
    """The rules of a product depend on which operand is transposed."""
    (data,) = json.loads(run("matmul", "--json"))["ops"]
    found = {}
    for case in data["cases"]:
        key = case["attributes"]["transpose_a"], case["attributes"]["transpose_b"]
        shapes = [x["shape"] for x in case["inputs"]]
        assert shapes[0][not key[0]] == shapes[1][key[1]]
        assert all((x["range"] is None) == (0 in x["shape"]) for x in case["inputs"])
        rules = {(*rule["inputs"], *rule["outputs"]) for rule in case["rules"]}
        assert found.setdefault(key, rules) == rules
    for a, b in product((False, True), repeat=2):
        assert (f"S({int(a)})", "B", "S(0)") in found[a, b]
        assert (f"S({1 - a})", f"S({int(b)})", "P") in found[a, b]
        assert len(found[a, b]) == 5


def test_the_table_names_the_samples_of_a_rule() -> None:
    lines = [line.strip() for line in run("matmul").splitlines()]
    (row,) = (line for line in lines if line.startswith("(S(1), B) -> S(0)"))
    numbers = row.partition("samples")[2].replace(",", "").split()
    samples = [line for line in lines if line.split()[:1] and line.split()[0] in numbers]
    assert len(samples) == len(numbers) == 3
    assert all("transpose_a=True" in line for line in samples)
    (row,) = (line for line in lines if line.startswith("(P, B) -> P"))
    assert "all samples" in row


@pytest.mark.slow
def test_json_has_no_infinities() -> None:
    """An attribute may be infinite, which JSON has no number for."""
    case = replace(op_entry(default_registry(), "exp").cases[0], attributes={"a": -np.inf})
    assert case.to_json()["attributes"] == {"a": {"float": "-inf"}}


@pytest.mark.slow
def test_entries_come_from_the_rules() -> None:
    found = {entry.type: entry for entry in catalog(default_registry())}
    assert not found["relu_grad"].gradient
    assert found["relu"].types == ("float16", "bfloat16", "float32", "float64")
    assert found["sgd_update"].types == ("float16", "bfloat16", "float32", "float64")
    assert found["fused"].internal
    assert found["cast"].attrs == {"dtype": "required"}
    assert found["reshape"].view
    assert not found["transpose"].view
    assert next(iter(found["reduce_sum"].signatures())) == "(S(0)) -> P"


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_the_kernels_that_a_device_type_has_and_lacks() -> None:
    text = run("--device", "plain")
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["exp"] == ["plain.numpy.exp", "plain_device_plugin"]
    assert lines["matmul"] == ["plain.numpy.matmul", "plain_device_plugin", "predict"]
    assert lines["sgd_update"] == ["missing", "train"]
    assert lines["conv2d"] == ["missing"]
    assert "reshape" not in lines
    assert "a predict job needs at least  3 ops; none is missing" in text
    absent = ", ".join(op for op, kind in NEEDED.items() if kind == "train")
    assert f"a train job needs at least    {len(NEEDED)} ops; missing: {absent}" in text
    data = json.loads(run("--device", "plain", "--json"))
    assert data["ops"]["sgd_update"]["kernels"] == []
    assert data["ops"]["sgd_update"]["needed_by"] == "train"


@pytest.mark.slow
def test_the_needed_ops_are_enough() -> None:
    """A device type with kernels of exactly these ops trains; without any of them it does not."""

    def losses(missing: set[str]) -> list[float]:
        with plain_device.session(plain_device.registry(set(default_registry().ops) - missing)):

            @flow.global_function("train")
            def job(x=ROWS, y=LABELS):  # type: ignore[no-untyped-def]
                with flow.scope.placement("plain", "0:0"):
                    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, _network(x))
                    loss = flow.math.reduce_mean(loss)
                    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
                    flow.optimizer.SGD(rate, momentum=0).minimize(loss)
                return loss

            x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
            return [job(x, np.arange(4, dtype=np.int32)).get().item() for _ in range(3)]

    made = losses(set(NEEDED))
    assert made[0] > made[1] > made[2]
    for op in NEEDED:
        with pytest.raises(FlowError, match=op):
            losses(set(NEEDED) - {op})


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(("matmull",), "did you mean matmul"), (("--device", "cup"), "did you mean cpu?")],
)
def test_unknown_names(arguments: tuple[str, ...], hint: str) -> None:
    result = CliRunner().invoke(cli, ["ops", *arguments])
    assert result.exit_code == 1
    assert hint in result.output


@pytest.mark.slow
def test_the_page_has_a_row_per_op() -> None:
    rows = [line for line in op_reports.page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == sorted(default_registry().ops)
    assert all(row.replace("\\|", "").count("|") == 8 for row in rows)
    (row,) = (row for row in rows if row.startswith("| `relu` |"))
    assert "(S(0)) -> S(0)" in row
    assert "floating" in row


def test_rules_that_raise_are_named() -> None:
    registry = default_registry()
    broken = replace(registry.ops["exp"], sbp=lambda ctx: ctx.nothing)
    found = replace(registry, ops={**registry.ops, "exp": broken})
    with pytest.raises(PluginError, match=r"describing op 'exp' of plugin 'core.ops'"):
        op_entry(found, "exp")


def test_an_entry_needs_a_registered_op() -> None:
    with pytest.raises(FlowError, match="no plugin registers that op"):
        op_entry(default_registry(), "nothing_like_it")


def test_element_types_on_a_device_are_those_that_a_kernel_accepts() -> None:
    registry = default_registry()
    types = device_types(registry, "relu")
    assert "float32" in types["cpu"]
    assert "int32" not in types["cpu"]
    assert set(types["cpu"]) <= set(op_entry(registry, "relu").types)
    assert "int32" in device_types(registry, "argmax")["cpu"]


def test_a_kernel_that_refuses_types_limits_a_device_to_the_others(plain: Registry) -> None:
    (kernel,) = plain.kernels("exp", "plain")
    refusing = replace(kernel, accepts=lambda query: query.dtypes[0].name == "float64")
    kernels = {**plain.all_kernels, ("exp", "plain"): (refusing,)}
    assert device_types(replace(plain, all_kernels=kernels), "exp")["plain"] == ("float64",)


def test_the_types_of_a_sample_are_shown_with_their_results() -> None:
    assert sample_types(default_registry(), "matmul") == (
        "float64[3,5], float64[5,4] -> float64[3,4]"
    )
