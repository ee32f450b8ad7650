"""The workload "loader": a job that only turns JPEG files into normalized batches.

python loading.py --step-ms 100    # how long a training step of 100 ms waits for its batch
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.disk_cache import user_folder

BATCH, SIZE = 64, 224
MEAN = [123.68, 116.779, 103.939]
STD = [58.393, 57.12, 57.375]
WIDTH = 2048


def batches(folder):
    """Return normalized images (BATCH, 3, SIZE, SIZE) of the JPEG files in a folder."""
    with flow.scope.placement("cpu", "0:0"):
        records = flow.data.image_folder_reader(folder, batch_size=BATCH)
        image = flow.data.OFRecordImageDecoderRandomCrop(
            records, "encoded", color_space="RGB", random_aspect_ratio=(3 / 4, 4 / 3)
        )
        pixels, _, _ = flow.image.Resize(
            image, target_size=(SIZE, SIZE), interpolation_type="bilinear"
        )
        mirror = flow.random.CoinFlip(batch_size=BATCH)
        return flow.image.CropMirrorNormalize(
            pixels, mirror, color_space="RGB", output_layout="NCHW", mean=MEAN, std=STD
        )


def picture_folder(count=256):
    """Return the folder BENCH_JPEG_DIR, or a folder of the user's cache with random pictures.

    The pictures have 500 x 375 pixels, detail at several scales, and quality 90.
    """
    given = os.environ.get("BENCH_JPEG_DIR")
    folder = Path(given) if given else user_folder("flow-benchmarks") / f"pictures-{count}"
    if given or folder.exists():
        return str(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch, "pictures")
        made.mkdir()
        rng = np.random.default_rng(7)
        for number in range(count):
            _picture(rng).save(made / f"{number:05d}.jpg", quality=90)
        made.rename(folder)
    return str(folder)


def _picture(rng, width=500, height=375):
    """Return a picture whose colors vary at three scales, with noise."""
    from PIL import Image  # needed by this workload only

    pixels = np.full((height, width, 3), 127.5)
    for columns, strength in ((5, 0.86), (20, 0.31), (80, 0.2)):
        coarse = rng.integers(0, 256, (columns * height // width + 1, columns, 3), np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        pixels += (np.asarray(smooth, float) - 127.5) * strength
    pixels += rng.normal(0, 4, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make_job(folder):
    """Return a job whose call returns the next batch."""

    @flow.global_function()
    def loader() -> tp.Numpy:
        return batches(folder)

    return loader


def cpu_seconds():
    """Return the CPU time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(name, steps=None, warm=7):
    """Return the record of one run, with the rate over some batches after a warm-up."""
    steps = steps or 14
    job = make_job(picture_folder())
    started = time.perf_counter()
    batch = job()
    first = time.perf_counter() - started
    for _ in range(warm - 1):
        batch = job()
    times, cpu, began = [], cpu_seconds(), time.perf_counter()
    for _ in range(steps):
        started = time.perf_counter()
        batch = job()
        times.append((time.perf_counter() - started) * 1e3)
    wall = time.perf_counter() - began
    return {
        "impl": name, "workload": "loader", "ok": True, "n": steps,
        "median_ms": round(wall / steps * 1e3, 3), "min_ms": round(min(times), 3),
        "images_per_s": round(steps * BATCH / wall, 1), "compile_s": round(first, 3),
        "cpu_ms_per_image": round((cpu_seconds() - cpu) / steps / BATCH * 1e3, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "values": [round(float(batch.mean()), 3), round(float(batch.std()), 3)],
    }  # fmt: skip


# ---------------------------------------------------------------- a training step with a loader


def train_job(layers, folder=None):
    """Return a job of dense layers on the images of a folder, or on constants if it is None."""

    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            if folder is None:
                colors = flow.constant(0.5, flow.float, (BATCH, 3))
            else:
                colors = flow.math.reduce_mean(batches(folder), [2, 3])
            x = colors
            for i in range(layers):
                kernel = flow.variance_scaling_initializer(2.0, "fan_in", "random_normal")
                x = flow.layers.dense(x, WIDTH, kernel_initializer=kernel, name=f"dense{i}")
                x = flow.nn.relu(x)
            loss = flow.math.reduce_mean(flow.math.square(x))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1e-6])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return train


def seconds_per_step(job, steps):
    """Return the minimum step time after two warm-up steps; clear the session."""
    for _ in range(2):
        job()
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        job()
        times.append(time.perf_counter() - started)
    flow.clear_default_session()
    return min(times)


def measure_fed(step_ms, steps):
    """Measure how long a step of about ``step_ms`` milliseconds waits for its batch."""
    one, three = (seconds_per_step(train_job(n), 10) for n in (1, 3))
    layers = max(1, round((step_ms / 1e3 - one) / ((three - one) / 2)) + 1)
    alone = seconds_per_step(train_job(layers), 10)
    job = train_job(layers, picture_folder())
    from flow_data.loading.stats import all_stats

    for _ in range(5):
        job()
    stats = all_stats()[-1]
    waited, copied, began = stats.waited, stats.copied, time.perf_counter()
    for _ in range(steps):
        job()
    wall = time.perf_counter() - began
    waiting, copying = (stats.waited - waited) / wall, (stats.copied - copied) / wall
    return {
        "layers": layers, "steps": steps, "alone_ms": round(alone * 1e3, 2),
        "step_ms": round(wall / steps * 1e3, 2), "waiting": round(waiting, 5),
        "copying": round(copying, 5), "levels": stats.levels,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=100)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    print(json.dumps(measure_fed(args.step_ms, args.steps)))


if __name__ == "__main__":
    main()
