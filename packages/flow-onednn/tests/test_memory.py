"""Steady-state steps: no memory outside the plan, and no copies that the plan does not list."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import processes
import pytest

from flow_onednn.library import library
from flow_onednn.native import compiler

pytestmark = pytest.mark.usefixtures("onednn")

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>

static long large, counting;
enum { LARGE = 2048 };

static void count(size_t size) {
    if (counting && size >= LARGE) __atomic_add_fetch(&large, 1, __ATOMIC_RELAXED);
}

void count_from_now(long on) { counting = on; large = 0; }
long counted(void) { return large; }

#define NEXT(name) \\
    static typeof(&name) next; \\
    if (!next) next = (typeof(&name))dlsym(RTLD_NEXT, #name)

void *malloc(size_t n) { NEXT(malloc); count(n); return next(n); }
void *realloc(void *p, size_t n) { NEXT(realloc); count(n); return next(p, n); }
int posix_memalign(void **p, size_t a, size_t n) {
    NEXT(posix_memalign);
    count(n);
    return next(p, a, n);
}
void *aligned_alloc(size_t a, size_t n) { NEXT(aligned_alloc); count(n); return next(a, n); }
void *mmap(void *p, size_t n, int a, int b, int c, off_t d) {
    NEXT(mmap);
    count(n);
    return next(p, n, a, b, c, d);
}
"""
"""Count allocations of the whole process, including the library and the C loops."""

PROGRAM = """
import ctypes, json, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

FORMAT, MIXED = sys.argv[1], sys.argv[2] == "mixed"
config = flow.FunctionConfig()
config.enable_auto_mixed_precision(MIXED)

@flow.global_function(type="train", function_config=config)
def train(
    x: tp.Numpy.Placeholder((16, 8, 28, 28)), y: tp.Numpy.Placeholder((16,), flow.int32)
) -> tp.Numpy:
    draw = flow.truncated_normal_initializer(stddev=0.1)
    h = x if FORMAT == "NCHW" else flow.transpose(x, (0, 2, 3, 1))
    axis = 1 if FORMAT == "NCHW" else 3
    for i, filters in enumerate((16, 32)):
        h = flow.layers.conv2d(h, filters, 3, padding="SAME", data_format=FORMAT, name=f"c{i}",
                               activation=flow.nn.relu, kernel_initializer=draw)
        h = flow.layers.batch_normalization(h, axis=axis, name=f"n{i}")
        h = flow.nn.max_pool2d(h, 2, 2, "VALID", FORMAT)
    h = flow.layers.dense(flow.reshape(h, (16, -1)), 700, flow.nn.relu, kernel_initializer=draw,
                          name="d0")
    h = flow.layers.layer_norm(flow.math.gelu(h), name="rows")
    h = flow.layers.dense(flow.nn.dropout(h, 0.5), 600, kernel_initializer=draw, name="d1")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
    flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss

rng = np.random.default_rng(0)
x, y = rng.normal(0, 1, (16, 8, 28, 28)).astype("f"), rng.integers(0, 600, 16).astype("i")
for _ in range(3):
    train(x, y)
process = ctypes.CDLL(None)
process.count_from_now(1)
np.empty(4096, np.uint8)
seen = process.counted()

from flow_onednn import recipes
copied = []
made = recipes.reorder
recipes.reorder = lambda source, target: copied.append(1) or made(source, target)
executable, bound = train.executable(), []
for task in train.plan().tasks:
    copied.clear()
    launches = executable.bind_task(task)
    bound.append((task, len(copied), launches))
for target, source in zip(executable.feeds, (x, y)):
    np.copyto(target, source)
rows = []
for task, copies, launches in bound:
    process.count_from_now(1)
    for launch in launches:
        launch()
    large = process.counted()
    attrs = task.attrs
    row = (copies, attrs.get("reordered", 0), large, attrs.get("memory", ""))
    rows.append((task.type, task.kernel, *row))
process.count_from_now(1)
train(x, y)
large = process.counted()
process.count_from_now(0)
print(json.dumps({"seen": seen, "large": large, "rows": rows}))
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counter")
    cc = shutil.which("cc")
    if cc is None or sys.platform != "linux":
        pytest.skip("no C compiler, or no LD_PRELOAD")
    (path / "counter.c").write_text(COUNTER)
    made = path / "counter.so"
    command = [cc, "-O1", "-fPIC", "-shared", str(path / "counter.c"), "-o", str(made), "-ldl"]
    processes.run(command, check=True)
    return made


@pytest.mark.slow
@pytest.mark.representative("NHWC", "the others differ in the layout")
@pytest.mark.parametrize(("form", "precision"), [("NCHW", "exact"), ("NHWC", "mixed")])
def test_steps_allocate_nothing_and_copy_only_as_listed(
    form: str, precision: str, counter: Path
) -> None:
    if not compiler.available():
        pytest.skip(f"no C compiler: {compiler.state()}")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "ONEFLOW_"))}
    command = [sys.executable, "-c", PROGRAM, form, precision]
    done = processes.run(command, env={**kept, "LD_PRELOAD": str(counter)})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["seen"] >= 1, "the counter works"
    rows = found["rows"]
    assert sum(row[1].startswith("onednn.") for row in rows) > 10
    assert [r for r in rows if r[2] and not r[3]] == [], "copies that the plan does not list"
    if library().asynchronous:
        return  # a library that queues its work allocates memory for the queue at any time
    assert [r for r in rows if r[4] and not r[5]] == [], "memory that the plan does not list"
    assert found["large"] == sum(r[4] for r in rows), "nothing is allocated around the tasks"
