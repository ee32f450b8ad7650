"""A worker with models of numpy, which starts in a fraction of a second.

The model ``double`` returns twice its input, after it has done what the first number of a row says:
13 raises an error, 66 ends the process, and 77 waits until the file of the variable GATE exists.
"""

import os
import signal
import time

import numpy as np

from flow_serve.info import ModelInfo, TensorInfo
from flow_serve.worker import main


def double(x):
    for value in x[:, 0]:
        if value == 13:
            raise ValueError("13 is not a number of this model")
        if value == 66:
            os.kill(os.getpid(), signal.SIGKILL)
        while value == 77 and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.001)
    return 2 * x


def load(source, batching, device):
    x, y = (TensorInfo(name, "FP32", (-1, 2)) for name in "xy")
    if source.name == "double":
        rows = batching.rows
        return ModelInfo("double", source.version, "p", (x,), (y,), rows, True), lambda a: [
            double(a[0])
        ]
    if source.name == "kinds":  # fixed shapes of several types
        names = ("BOOL", "UINT8", "INT64", "FP16", "BF16", "FP64")
        tensors = tuple(TensorInfo(n.lower(), n, (2,)) for n in names)
        return ModelInfo("kinds", source.version, "p", tensors, tensors, 0, False), list
    if source.name == "large":
        out = TensorInfo("y", "UINT8", (1 << 24,))
        made = [np.zeros(1 << 24, np.uint8)]
        return ModelInfo("large", source.version, "p", (), (out,), 0, False), lambda _: made
    raise ValueError(f"no model {source.name}")


if __name__ == "__main__":
    main(load)
