"""Records that devices read, each its part of every batch: prints what comes of them."""

import sys
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import UnsupportedError

COUNT, BATCH = 23, 6


def write(folder: Path) -> None:
    """Two files of records."""
    for part, numbers in enumerate((range(10), range(10, COUNT))):
        with flow.data.OFRecordWriter(folder / f"part-{part}") as writer:
            for i in numbers:
                writer.write({"label": i, "x": np.arange(3.0) + i})


def loaded(folder: str, readers: str, decoders: str):
    """Labels and numbers of records, which are read on some devices and decoded on some."""

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", readers):
            records = flow.data.ofrecord_reader(
                folder, batch_size=BATCH, data_part_num=2, random_shuffle=True, seed=3
            )
        with flow.scope.placement("cpu", decoders):
            label = flow.data.OFRecordRawDecoder(records, "label", shape=(), dtype=flow.int32)
            x = flow.data.OFRecordRawDecoder(records, "x", shape=(3,), dtype=flow.float)
            return label + 0, x * 2.0

    return job


def main(folder: str) -> None:
    for devices in ("0:0", "0:0-1", "0:0-3"):
        job = loaded(folder, devices, devices)
        for _ in range(5):
            label, x = job()
            np.testing.assert_array_equal(x, 2 * (label[:, None] + np.arange(3.0)))
            print(devices, label.tolist())
        flow.clear_default_session()
    try:
        found = loaded(folder, "0:0", "0:0-1")()
        print("moved", found[0].tolist())
    except UnsupportedError as error:
        print(error)


if __name__ == "__main__":
    task, folder = sys.argv[1:]
    write(Path(folder)) if task == "write" else main(folder)
