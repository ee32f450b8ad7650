"""The jobs of simulation_bench.py: ``python simulation_jobs.py NAME STEPS`` runs one of them.

``flow plan --simulate simulation_jobs.py:job -- NAME`` simulates it.
"""

import json
import sys
import time

import numpy as np

import oneflow as flow
import oneflow.typing as tp

FORMS = ("data", "model", "alternate", "pipe2", "pipe4", "pipe8")
WIDTHS = (256, 768)
COUNTS = (2, 4)
ROWS, LAYERS = 512, 4
PLANS = {
    f"{form}-{width}-{count}": (form, width, count)
    for count in COUNTS
    for form in FORMS
    for width in WIDTHS
}
"""Plans of one perceptron on some devices: by samples, by units, by both in turn, and as pipelines
of a stage per device with 2, 4 and 8 micro-batches."""


def updated(loss):
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
    flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
    return loss


def image_job(network, shape):
    import networks

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder(shape), y: tp.Numpy.Placeholder((shape[0],), dtype=flow.int32)
    ) -> tp.Numpy:
        return updated(getattr(networks, network)(x, y))

    return job


def gpt_job(shape):
    import compile_bench

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder(shape, dtype=flow.int32),
        y: tp.Numpy.Placeholder(shape, dtype=flow.int32),
    ) -> tp.Numpy:
        return updated(compile_bench.gpt(6, x, y))

    return job


def plan_job(form, width, count):
    config = flow.function_config()
    if form.startswith("pipe"):
        config.train.num_gradient_accumulation_steps(int(form.removeprefix("pipe")))
    both = flow.scope.placement("cpu", f"0:0-{count - 1}")

    def layer(h, i):
        init = flow.random_normal_initializer(stddev=0.02)
        w = flow.get_variable(f"w{i}", (width, width), initializer=init)
        axis = {"model": 1, "alternate": 1 - i % 2}.get(form)
        if axis is not None:
            w = w.with_distribute(flow.distribute.split(axis))
        elif form == "data":
            h = h.with_distribute(flow.distribute.split(0))
        return flow.math.tanh(flow.matmul(h, w))

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((ROWS, width))) -> tp.Numpy:
        h = x
        for i in range(LAYERS):
            stage = flow.scope.placement("cpu", f"0:{count * i // LAYERS}")
            with stage if form.startswith("pipe") else both:
                h = layer(h, i)
        last = flow.scope.placement("cpu", f"0:{count - 1}")
        with last if form.startswith("pipe") else both:
            return updated(flow.math.reduce_mean(h * h))

    return job


def make(name):
    """Return the job with a name."""
    if name in PLANS:
        return plan_job(*PLANS[name])
    if name == "gpt":
        return gpt_job((2, 64))
    return image_job(name, {"mlp": (256, 784), "lenet": (64, 1, 28, 28)}.get(name, (4, 3, 64, 64)))


def feeds(job):
    """Return random inputs of a job."""
    rng = np.random.default_rng(0)
    found = []
    for spec in job.signature.parameters.values():
        kind = spec.dtype.numpy
        values = rng.random(spec.shape) if kind.kind == "f" else rng.integers(0, 10, spec.shape)
        found.append(values.astype(kind))
    return found


if len(sys.argv) > 1:
    job = make(sys.argv[1])

if __name__ == "__main__":
    arrays, times = feeds(job), []
    for _ in range(int(sys.argv[2])):
        started, used = time.perf_counter(), time.process_time()
        job(*arrays)
        times.append((time.perf_counter() - started, time.process_time() - used))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    arenas = [a.nbytes for a in job.plan().arenas]
    print("JSON" + json.dumps({"times": times[2:], "rss": peak, "arenas": arenas}), flush=True)
