"""The kernels, imported on first use."""

import os
from functools import partial

import numpy as np

from flow_core.base.errors import DataError
from flow_core.base.formats.regular_files import read_regular

LONGEST = 1 << 26
"""The maximum number of bytes of a file."""


def relu(ctx):
    """Return a launch that writes the greater of x and 0."""
    (x,), (y,) = ctx.inputs, ctx.outputs
    return partial(np.maximum, x, np.zeros((), x.dtype), out=y)


def square(ctx):
    """Return launches that write 3 x x."""
    (x,), (y,) = ctx.inputs, ctx.outputs
    return (partial(np.multiply, x, x, y), partial(np.multiply, y, 3, y))


def decode(ctx):
    """Return launches that write the two columns."""
    (x,), (first, second) = ctx.inputs, ctx.outputs
    return (partial(np.copyto, first, x[:, :1]), partial(np.copyto, second, x[:, 1:]))


def part_path(attrs, number):
    """Return the path of a part, such as ``data/part-003``."""
    digits = str(number).zfill(max(attrs["part_name_suffix_length"], 0))
    return os.path.join(attrs["data_dir"], attrs["part_name_prefix"] + digits)


def read_part(path):
    """Return the pairs of numbers of a file, float64 (lines, 2)."""
    try:
        lines = read_regular(path, LONGEST).decode().splitlines()
        rows = [[float(n) for n in line.split(",")] for line in lines if line.strip()]
        return np.array(rows, np.float64).reshape(-1, 2)
    except (OSError, ValueError) as error:
        allowed = "lines of two numbers, separated by a comma"
        raise DataError(f"reading {path}", found=str(error), allowed=allowed) from error


class Epochs:
    """The samples of all epochs, one after the other.

    Args:
        attrs: attributes of the op.
        seed: seed of the shuffles.
    """

    def __init__(self, attrs, seed):
        self.parts = [read_part(part_path(attrs, i)) for i in range(attrs["data_part_num"])]
        self.count = sum(map(len, self.parts))
        self.attrs, self.seed = attrs, attrs["seed"] if attrs["seed"] >= 0 else seed
        if not self.count:
            raise DataError(f"reading {attrs['data_dir']}", found="no sample", allowed="samples")

    def epoch(self, number):
        """Return the samples of an epoch in their order."""
        draw, parts = np.random.default_rng((self.seed, number)), self.parts
        if self.attrs["shuffle_after_epoch"] and number:
            parts = [parts[i] for i in draw.permutation(len(parts))]
        rows = np.concatenate(parts)
        if self.attrs["random_shuffle"]:
            size = self.attrs["shuffle_buffer_size"]
            for start in range(0, len(rows), size):
                draw.shuffle(rows[start : start + size])
        return rows


def read(ctx):
    """Return a launch that reads the batch of the running step."""
    region, size = ctx.attrs["region"], ctx.attrs["batch_size"]
    rows = range(*region[0]) if region else range(size)
    return partial(_read, Epochs(ctx.attrs, ctx.seed), size, rows, ctx.step, ctx.outputs[0])


def _read(epochs, size, rows, step, out):
    numbers = [int(step) * size + row for row in rows]
    samples = {k: epochs.epoch(k) for k in {n // epochs.count for n in numbers}}
    for i, number in enumerate(numbers):
        out[i] = samples[number // epochs.count][number % epochs.count]
