"""``flow-dist run --trace``: one file with the steps of all ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import processes
import pytest
from launching import launcher

SCRIPT = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function(type="train")
def fit(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
    with flow.scope.placement("cpu", "0:0-1"):
        w = flow.get_variable("w", (3, 1), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.math.square(flow.matmul(x, w)))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss

for _ in range(2):
    fit(np.ones((8, 3), np.float32))
"""


@pytest.mark.slow
def test_tracks_of_all_ranks_and_arrows_between_them(tmp_path: Path) -> None:
    launcher()
    script, trace = tmp_path / "fit.py", tmp_path / "trace.json"
    script.write_text(SCRIPT)
    run = "import sys; from flow_dist.cli import main; main()"
    done = processes.run(
        [sys.executable, "-c", run, "run", "-n", "2", "--trace", str(trace), str(script)]
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"fit.py", "trace.json"}
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    steps = [(e["pid"], e["name"]) for e in events if e["name"].startswith("step ")]
    assert sorted(steps) == [(r, f"step {s} of fit") for r in (0, 1) for s in (0, 1)]
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {(0, "cpu[0:0] compute"), (1, "cpu[0:1] compute")} < tracks
    assert (0, "cpu[0:1] compute") not in tracks
    starts, ends = ({e["id"]: e["pid"] for e in events if e["ph"] == p} for p in "sf")
    assert starts.keys() == ends.keys()
    assert any(starts[key] != ends[key] for key in starts)
