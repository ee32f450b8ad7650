"""A worker process: computes batches, one at a time, with all models of the server.

The program of a worker, such as `flow_serve.models`, gets the number of a connected socket.  The
first message to the worker lists the models; the worker answers with what it has loaded, then with
the outputs of each batch.  It ends with the connection.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flow_core.base.errors import FlowError, described
from flow_serve.frames import receive_blocking, send_blocking
from flow_serve.info import ModelInfo, Source
from flow_serve.protocol import bytes_of
from flow_serve.settings import Batching

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]
Loader = Callable[[Source, Batching, str], tuple[ModelInfo, Run]]
"""A function that loads a version, given its source, the batches to prepare and the device type.

It returns the version's description, and the function that computes a batch of one of
`Batching.sizes`."""


def serve(connection: socket.socket, load: Loader) -> None:
    """Load the models that the first message names; compute batches until the connection ends."""
    setup, _ = receive_blocking(connection)
    batching = Batching(**setup["batching"])
    models = []
    for given in setup["models"]:
        source = Source(**given)
        try:
            models.append(load(source, batching, setup["device"]))
        except Exception as error:  # noqa: BLE001 - reported by the server, whatever it is
            if not isinstance(error, FlowError):
                traceback.print_exc()
            text = f"loading version {source.version} of {source.name!r}: {described(error)}"
            send_blocking(connection, {"error": text})
            return
    send_blocking(connection, {"models": [info.to_json() for info, _ in models]})
    while True:
        request, data = receive_blocking(connection)
        info, run = models[request["model"]]
        try:
            outputs = _computed(info, run, batching, request["rows"], data)
        except Exception as error:  # noqa: BLE001 - the rows of a batch may raise anything
            if not isinstance(error, FlowError | ValueError | ArithmeticError | LookupError):
                traceback.print_exc()
            send_blocking(connection, {"error": described(error)})
            continue
        send_blocking(connection, {}, outputs)


def _computed(
    info: ModelInfo, run: Run, batching: Batching, rows: int, data: memoryview
) -> list[memoryview]:
    """Compute a batch, whose rows are filled up to the next size if rows are independent."""
    size = next(n for n in batching.sizes if n >= rows) if info.combines else rows
    arrays, start = [], 0
    for tensor in info.inputs:
        given = data[start : start + tensor.nbytes(rows)]
        start += len(given)
        array = np.frombuffer(given, tensor.dtype).reshape(tensor.sized(rows))
        if size > rows:
            array = np.concatenate([array, np.repeat(array[-1:], size - rows, axis=0)])
        arrays.append(array)
    found = []
    for tensor, output in zip(info.outputs, run(arrays), strict=True):
        used = output[:rows] if size > rows else output
        if used.dtype != tensor.dtype or used.shape != tensor.sized(rows):
            raise ValueError(f"output {tensor.name!r} of shape {used.shape} and type {used.dtype}")
        found.append(bytes_of(used))
    return found


def main(load: Loader, arguments: Sequence[str] = sys.argv) -> None:
    """Run a worker on the socket that an argument of the program names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server ends its workers
    with contextlib.suppress(EOFError, ConnectionError):
        serve(socket.socket(fileno=int(arguments[1])), load)
