"""Saved models: the file that describes one, beside sound weights."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.api.serving.model_file import FILE
from fuzzing.mutations import EXTREMES, mutate_document
from fuzzing.target import Target

_WORDS = (
    "-1", "0", "2", "9" * 12, "9" * 5000, "1e309", "nan", '"', "'", "(", ")", "[", "]", "{", "}",
    ",", ":", "=", "\n", "\0", "\\", "\u2028", "\ud800", "float32", "int64", "record", "None", "()",
    "(1,)", "True", "relu", "matmul", "@cpu[0:0-9999999]", "sbp(S(0))", "after(x)", "(" * 3000,
    "a:11" * 40, "a" * 2000,
)  # fmt: skip
"""Texts that are inserted into graphs."""


def _save(folder: Path) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 2, 3)), y: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        a = flow.reshape(flow.nn.relu(x), (4, 6))
        b = flow.concat([flow.layers.dense(a, 5, name="d"), y * 2.0], axis=1)
        return flow.math.reduce_sum(flow.nn.softmax(b), axis=[1], keepdims=True)

    builder = flow.saved_model.ModelBuilder(str(folder)).ModelName("m").Version(1)
    builder.AddFunction(job)
    builder.Save()
    flow.clear_default_session()


@lru_cache(maxsize=1)
def _models() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as made:
        _save(Path(made, "models"))
        plain = Path(made, "models", "1", FILE).read_bytes()
    content = json.loads(plain)
    signature = {"inputs": {"first": "x"}, "outputs": {"sum": 0}}
    content["graphs"]["job"] |= {"signatures": {"s": signature}, "default_signature": "s"}
    return plain, json.dumps(content).encode()


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Changed words of the graph's text, or another change of the file."""
    if rng.random() < 0.4:
        return mutate_document(data, rng)
    content = json.loads(data)
    graph = content["graphs"]["job"]
    words = re.findall(r"\w+|\s+|.", graph["text"])
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, word = rng.randrange(len(words)), rng.choice((rng.choice(_WORDS), rng.choice(words)))
        if words[at].isdigit() and rng.random() < 0.8:
            word = rng.choice((str(rng.randrange(-2, 9)), str(rng.choice(EXTREMES))))
        words[at : at + rng.choice((0, 1, 1, 1, 2))] = [word]
    if rng.random() < 0.05:
        words *= 2
    graph["text"] = "".join(words)
    return json.dumps(content).encode()


def _open(folder: Path) -> Callable[[bytes, int], object]:
    _save(folder / "models")
    file = folder / "models" / "1" / FILE
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"

    def read(data: bytes, number: int) -> None:
        file.write_bytes(data)
        with flow.serving.InferenceSession(option) as session:
            session.load_saved_model(str(folder / "models"))
            if number % 2 == 0:
                session.launch()
                (name,) = session.list_jobs()
                infos: dict[str, Any] = {i: session.input_info(i) for i in session.list_inputs()}
                session.run(name, **{k: _ones(info) for k, info in infos.items()})

    return read


def _ones(info: dict[str, Any]) -> Any:
    return np.ones(info["shape"], info["dtype"].numpy)


TARGETS = (Target("saved-model", _models, _open, _mutate, weight=0.5),)
