"""Data that ops of the host read and decode, on simulated GPUs: what CPUs give."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_cases import PLUGIN
from cuda_simulator import host_compiler

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.frontend.session import session as sessions
from flow_core.plugins.host import load_plugins
from flow_cuda.driver.capture import describe
from flow_cuda.driver.gpu import recorded_parts

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def read(folder: Path, device: str, count: int) -> Any:
    """A job that reads records, decodes them and computes with them."""
    others = ("flow-cuda", "flow-onednn")
    settings = replace(Settings.from_env(), disabled_plugins=others)
    registry = load_plugins(settings, extra=[PLUGIN] if device == "gpu" else [])
    sessions._default[:] = [sessions.Session(registry)]

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement(device, f"0:0-{count - 1}"):
            found = flow.data.ofrecord_reader(str(folder), batch_size=4, data_part_num=2)
            label = flow.data.OFRecordRawDecoder(found, "label", shape=(), dtype=flow.int32)
            x = flow.data.OFRecordRawDecoder(found, "x", shape=(3,), dtype=flow.float)
            return flow.math.relu(x - 5.0) * 2.0, label

    return job


@pytest.mark.slow
@pytest.mark.representative(r"\[2\]", "two devices, which read different records")
@pytest.mark.parametrize("count", [1, 2])
def test_readers_feed_gpus(tmp_path: Path, count: int) -> None:
    for part in range(2):
        with flow.data.OFRecordWriter(tmp_path / f"part-{part}") as writer:
            for i in range(10 * part, 10 * part + 10):
                writer.write({"label": i, "x": np.arange(3, dtype=np.float32) + i})
    job = read(tmp_path, "cpu", count)
    want = [job() for _ in range(4)]
    job = read(tmp_path, "gpu", count)
    for have in (job() for _ in range(4)):
        for one, other in zip(have, want.pop(0), strict=True):
            np.testing.assert_array_equal(one, other)
    parts = describe(recorded_parts(job.executable()._launch))
    assert "graph of" in parts
    assert "runs on the host" in parts
