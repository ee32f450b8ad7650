"""``flow verify``: ops of a plugin that say wrong things about themselves are found and named."""

from __future__ import annotations

import json
from typing import Any

import pytest

Site = Any

PROGRAM = """
import oneflow as flow
import oneflow.typing as tp

def mine(kind, x):
    op = flow.user_op_builder("mine").Op(kind).Input("x", [x]).Output("out").Build()
    return op.InferAndTryRun().RemoteBlobList()[0]

@flow.global_function()
def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0-3"):
        x = flow.math.exp(x)
        y = mine("OP", x)
        return flow.math.tanh(y)
"""


def verify(site: Site, text: str, *options: str) -> Any:
    script = site.folder / "program.py"
    script.write_text(text)
    return site.flow("verify", *options, f"{script}:job", FLOW_PLUGINS=None)


@pytest.mark.representative(
    "column", "devices that hold different values; the other rules have a wrong layout"
)
@pytest.mark.parametrize(
    ("op", "signature", "note"),
    [
        ("shifted_sum", "(S(0)) -> P", "instead of"),
        ("upside_down", "(S(0)) -> S(0)", "instead of"),
        ("column_sum", "(S(0)) -> B", "hold different values"),
    ],
)
def test_a_wrong_rule_is_named_by_the_users_line(
    site: Site, op: str, signature: str, note: str
) -> None:
    site.install("wrong_rule")
    done = verify(site, PROGRAM.replace("OP", op), "--devices", "4")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "wrong rule  " in line and op in line]
    assert signature in row
    assert row.split()[-1].endswith("program.py:7")
    assert note in done.stdout
    assert "tanh" not in done.stdout  # it is right, from what it was given


@pytest.mark.slow
def test_the_verdict_as_json(site: Site) -> None:
    text = PROGRAM.replace("OP", "shifted_sum")
    done = verify(site.install("wrong_rule"), text, "--devices", "4", "--json")
    found = json.loads(done.stdout)
    assert [found["ok"], done.returncode] == [False, 1]
    (wrong,) = [op for op in found["ops"] if op["verdict"] == "wrong rule"]
    assert wrong["signature"] == "(S(0)) -> P"
    assert wrong["line"].endswith("program.py:7")


def test_a_job_that_is_right(site: Site) -> None:
    text = PROGRAM.replace('mine("OP", x)', "flow.math.reduce_sum(x, axis=0)")
    done = verify(site, text, "--devices", "4", "--steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong" not in done.stdout
    assert "a second run gives the same bits" in done.stdout


@pytest.mark.slow
def test_a_job_for_one_device_is_spread(site: Site) -> None:
    text = PROGRAM.replace('mine("OP", x)', "x").replace("0:0-3", "0:0")
    done = verify(site, text, "--devices", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu[0:0-2], spread over them for this check" in done.stdout
    alone = site.flow(
        "verify", f"{site.folder / 'program.py'}:job", FLOW_PLUGINS=None, ONEFLOW_EMULATE_GPUS="1"
    )
    assert alone.returncode == 1
    assert "--devices 4" in alone.stderr
