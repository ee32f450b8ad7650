"""One budget of cores: what plans of whole jobs make of it, and that they keep to it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from click.testing import CliRunner

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.thread_budget import Budget
from flow_core.base.thread_pools import current_kernel_threads
from flow_core.cli.app import cli
from flow_core.frontend.session import session as sessions
from flow_core.observe.text import plan_report
from flow_core.plugins.host import load_plugins
from flow_data.codec import encode_jpeg

BATCH = 512


@contextmanager
def budget(cores: int, threads: int | None = None, onednn: bool = False) -> Iterator[None]:
    """A session with so many cores and two emulated devices."""
    flow.clear_default_session()
    without = () if onednn else ("flow-onednn",)
    settings = Settings(
        emulate_gpus=2,
        stream_threads=threads,
        disabled_plugins=without,
        cores=Budget(cores, "a test"),
    )
    sessions._default[:] = [sessions.Session(load_plugins(settings), settings)]
    try:
        yield
    finally:
        flow.clear_default_session()
        sessions._default.clear()


def stages(units: int, dtype: Any = flow.float) -> Any:
    """A pipeline of two stages, a layer each."""
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(4)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((BATCH, units), dtype=dtype)) -> tp.Numpy:
        init = flow.random_normal_initializer(stddev=0.02)
        for i in range(2):
            with flow.scope.placement("gpu", f"0:{i}"):
                w = flow.get_variable(f"w{i}", (units, units), dtype=dtype, initializer=init)
                x = flow.math.tanh(flow.matmul(x, w))
        with flow.scope.placement("gpu", "0:1"):
            loss = flow.math.reduce_mean(x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return job


@pytest.mark.representative(r"\[2\]", "as many threads as cores")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_devices_divide_the_cores(threads: int) -> None:
    """Whether or not their streams run at once: the bits of BLAS may depend on it."""
    with budget(2, threads):
        job = stages(256)
        cores = job.plan().cores
        assert (cores.budget, cores.kernels, cores.products, cores.loaders) == (2, 1, 1, 1)
        job(np.ones((BATCH, 256), np.float32))
        assert current_kernel_threads() == 2  # the thread is given back what it had
        assert "each kernel" in plan_report(job)
        assert ("on 2 threads, kernels of 1" in plan_report(job)) == (threads == 2)


def test_stages_run_at_once_where_cores_are_left() -> None:
    with budget(2):
        plan = stages(256).plan()
        assert (plan.workers, plan.cores.kernels) == (2, 1)
    with budget(4):
        plan = stages(256).plan()
        assert (plan.workers, plan.cores.kernels) == (2, 2)
    with budget(1):
        plan = stages(256).plan()
        assert (plan.workers, plan.cores.kernels) == (1, 1)


def test_short_ops_of_several_devices_have_one_thread() -> None:
    """Several would mostly wait for each other; one device has all cores, whatever its ops."""
    with budget(8):
        assert stages(8).plan().cores.kernels == 1

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
            with flow.scope.placement("gpu", "0:0"):
                return flow.math.tanh(x)

        assert job.plan().cores.kernels == 8


def products(body: Any, dtype: Any = flow.float) -> int:
    """Threads of numpy's products in a job's plan, of two."""
    pytest.importorskip("flow_onednn.library")
    from flow_onednn import library
    from flow_onednn.native import compiler

    if not (library.available() and compiler.available()):
        pytest.skip("no oneDNN, or no compiler")
    with budget(2, onednn=True):

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((512, 512), dtype=dtype)) -> tp.Numpy:
            with flow.scope.placement("cpu", "0:0"):
                return body(x)

        return job.plan().cores.products


def test_numpys_products_have_all_cores_where_nobody_else_wants_them() -> None:
    assert products(lambda x: flow.matmul(x, x), flow.double) == 2


def test_numpys_products_have_one_thread_beside_those_of_openmp() -> None:
    """BLAS's threads look for work for tens of milliseconds after each product."""

    def body(x: Any) -> Any:
        for _ in range(2):
            small = flow.cast(flow.slice_v2(x, [(0, 128, 1), (0, 128, 1)]), flow.double)
            factor = flow.cast(flow.math.reduce_mean(flow.matmul(small, small)), flow.float)
            x = flow.nn.relu(flow.matmul(x, x)) * factor
        return x

    assert products(body) == 1


def test_loaders_have_what_steps_leave(tmp_path: Path) -> None:
    folder = tmp_path / "pictures" / "a"
    folder.mkdir(parents=True)
    for i in range(4):
        (folder / f"{i}.jpg").write_bytes(encode_jpeg(np.full((9, 9, 3), i, np.uint8)))

    def pictures() -> Any:
        with flow.scope.placement("cpu", "0:0"):
            records = flow.data.image_folder_reader(str(folder.parent), batch_size=2)
            image = flow.data.OFRecordImageDecoder(records, "encoded", color_space="RGB")
            pixels, _, _ = flow.image.Resize(image, target_size=(8, 8))
            return flow.image.CropMirrorNormalize(pixels, color_space="RGB")

    with budget(4):

        @flow.global_function()
        def read() -> tp.Numpy:
            return pictures()

        @flow.global_function()
        def compute() -> tp.Numpy:
            return flow.math.reduce_mean(flow.math.tanh(pictures()))

        assert read.plan().cores.loaders == 4
        assert compute.plan().cores.loaders == 1
        compute()
        from flow_data.loading.stats import all_stats

        limits = all_stats()[-1].limits
        assert limits is not None
        assert (limits.computing, limits.waiting) == (1, 4)


def test_the_doctor_tells_the_budget() -> None:
    shown = CliRunner().invoke(cli, ["doctor"], env={"ONEFLOW_CPU_THREADS": "3", "COLUMNS": "200"})
    assert "3 by ONEFLOW_CPU_THREADS" in shown.output
    assert "numpy's BLAS" in shown.output


RUNNABLE = """
import json, os, sys, threading
import numpy as np
sys.path.insert(0, sys.argv[1])
from test_cores import BATCH, stages
job = stages(384)
feed = np.ones((BATCH, 384), np.float32)
job(feed)
over = threading.Event()
seen = []

def state(thread):
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"

def watch():
    own = threading.get_native_id()
    while not over.wait(0.002):
        others = (int(t) for t in os.listdir("/proc/self/task") if int(t) != own)
        seen.append(sum(state(t) == "R" for t in others))

watcher = threading.Thread(target=watch)
watcher.start()
while len(seen) < 80:
    job(feed)
over.set()
watcher.join()
print(json.dumps({"workers": job.plan().workers, "seen": seen}))
"""


@pytest.mark.slow
@pytest.mark.representative("flow-onednn", "numpy's kernels alone; the other case adds oneDNN")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.parametrize("plugins", ["", "flow-onednn"])
def test_no_more_threads_want_to_run_than_there_are_cores(plugins: str) -> None:
    """Sampled while two stages run; a few samples may see a thread on its way to sleep."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    settings = {
        "ONEFLOW_CPU_THREADS": "2",
        "ONEFLOW_EMULATE_GPUS": "2",
        "FLOW_STREAM_THREADS": "2",
        "FLOW_DISABLE_PLUGINS": plugins,
        "PYTHONPATH": os.pathsep.join(sys.path),  # as of this module, which the program imports
    }
    command = [sys.executable, "-c", RUNNABLE, str(Path(__file__).parent)]
    done = processes.run(command, env={**kept, **settings}, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["workers"] == 2
    crowded = sum(count > 2 for count in found["seen"])
    assert crowded <= 0.05 * len(found["seen"]), found["seen"]
