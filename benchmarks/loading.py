"""The workload "loader": JPEG files to normalised batches, by a job that does nothing else."""

import os
import resource
import time

import oneflow as flow
import oneflow.typing as tp

BATCH, SIZE = 64, 224
MEAN = [123.68, 116.779, 103.939]
STD = [58.393, 57.12, 57.375]


def make_job(folder):
    """A job whose call gives the next batch."""

    @flow.global_function()
    def loader() -> tp.Numpy:
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

    return loader


def cpu_seconds():
    """CPU time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(name, steps=None, warm=7):
    """The record of one run: rate over some batches after a warm-up."""
    steps = steps or 14
    job = make_job(os.environ["BENCH_JPEG_DIR"])
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
