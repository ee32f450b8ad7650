"""Saved plans, and annotations as text."""

from __future__ import annotations

import io
import json
import random
import re
import tempfile
import types
import typing
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.annotations.parsing import parse_placeholder, parse_result
from flow_core.base.errors import AnnotationError, FlowError
from flow_core.base.formats.recorded_steps import (
    RecordedStep,
    Recording,
    read_recording,
    write_recording,
)
from flow_core.costs.collectives import exchange_seconds
from flow_core.costs.links import Link, LinkModel
from flow_core.costs.model import DEFAULT
from flow_core.costs.topology_file import read_topology, topology_text
from flow_core.observe.diff import diff_tables
from flow_core.observe.document import PlanDocument, document
from flow_core.observe.op_catalog import catalog_json, op_entry
from flow_core.observe.page import page
from flow_core.observe.tables import joined
from flow_core.observe.text import plan_tables
from flow_core.plan import Plan
from flow_core.plugins.host import default_registry
from flow_core.sharding.topology import Device
from flow_rules import RulesError, read_rules
from flow_typing.plugin import SPECS
from fuzzing.mutations import TEXTS, mutate_bytes, mutate_document
from fuzzing.target import Target


def _job(devices: str, fed: str) -> Any:
    shape = (4, 3)

    @flow.global_function(type="train" if fed == "train" else "predict")
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(flow.matmul(x, w))
            if fed == "train":
                rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
                flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return job


_SECONDS = re.compile(r'(?<="seconds": )[\d.e-]+|[\d.]+(?= s")')
"""Times that passes took, which differ between processes."""


def _plans() -> list[bytes]:
    found = []
    for devices, kind in (("0:0", "predict"), ("0:0-1", "train")):
        flow.clear_default_session()
        text = document(_job(devices, kind)).to_json()
        found.append(_SECONDS.sub("0.001", text).encode())
    flow.clear_default_session()
    return found


def _open_plan(folder: Path) -> Callable[[bytes, int], object]:
    sound = PlanDocument.from_json(_plans()[0].decode())

    def read(data: bytes, number: int) -> None:
        doc = PlanDocument.from_json(data.decode(errors="replace"))
        text = joined(plan_tables(doc)) + joined(diff_tables(sound, doc))
        (text + page(doc)).encode()
        Plan.from_json(doc.plan.to_json())

    return read


# ----------------------------------------------------------------------------------- annotations

_ANNOTATIONS = (
    "tp.Numpy.Placeholder((2, 3), dtype=flow.float)",
    "tp.ListNumpy.Placeholder((2, 3), dtype=flow.int32)",
    "Tuple[tp.Numpy.Placeholder((1,)), tp.ListNumpy.Placeholder((4,))]",
    "Annotated[int, tp.Numpy.Placeholder((2,))]",
    "tp.Callback[Tuple[tp.Numpy, List[tp.Numpy]]]",
    "Dict[str, tp.Bundle[tp.Numpy]]",
    "'tp.Numpy'",
    "None",
)
_TOKENS = (
    "tp", "flow", "Numpy", "ListNumpy", "Callback", "Bundle", "Placeholder", "Tuple", "List",
    "Dict", "Annotated", "Optional", "Union", "Any", "again", "int", "str", "None", "...", "(",
    ")", "[", "]", ",", ".", "'", '"', "=", ":", "-1", "0", "2", "9999999999999999999", "1.5",
    "dtype", "float", "shape", "[[]]", "{}", "{1: 2}", "()", "\n", " ", "\\", "#", "\0", "\ud800",
    "lambda: 0", "not", "-", "/", "0/0", "int.x", "type", "object()", "[int]", "typing.ForwardRef",
)  # fmt: skip
_NAMES = {
    "tp": tp, "flow": flow, "typing": typing, "again": "again", "Tuple": tuple, "List": list,
    "Dict": dict, "Annotated": typing.Annotated, "Optional": typing.Optional,
    "Union": typing.Union, "Any": typing.Any, "self": types.SimpleNamespace(), "deep": "deep2",
    "deep2": "deep",
}  # fmt: skip


def _mutate_annotation(data: bytes, rng: random.Random) -> bytes:
    """Tokens removed, repeated or exchanged; powers and shifts are the user's own affair."""
    import re

    if rng.random() < 0.2:
        made = mutate_bytes(data, rng).decode(errors="replace")
    else:
        parts = re.findall(r"\w+|\s+|\W", data.decode())
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(parts) + 1)
            parts[at : at + rng.randrange(3)] = [rng.choice(_TOKENS)] * rng.choice((0, 1, 1, 2))
        made = "".join(parts)
    if rng.random() < 0.02:
        depth = rng.choice((50, 200, 3000))
        made = rng.choice(("List[", "(", "tp.Callback[", "-")) * depth + made
    made = made.replace("**", "* ").replace("<<", "< ").replace("*", "+")
    return (made + rng.choice(TEXTS) * (rng.random() < 0.02)).encode("utf-8", "surrogatepass")


def _too_deep(text: str) -> bool:
    """Whether the compiler takes a text for too deep, for which it has a `MemoryError`, too."""
    try:
        compile(text, "annotation", "eval")
    except MemoryError:
        return True
    return False


def _open_annotation(folder: Path) -> Callable[[bytes, int], object]:
    def read(data: bytes, number: int) -> None:
        text = data.decode("utf-8", "surrogatepass")
        usual = ("Placeholder" in text) != (number % 16 == 15)
        parse: Any = parse_placeholder if usual else parse_result
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's, about the annotation
            try:
                str(parse(text, SPECS, job="job", names=_NAMES))
            except AnnotationError as error:
                deep = isinstance(error.__cause__, MemoryError) and _too_deep(text)
                raise error from None if deep else error.__cause__

    return read


def _topologies() -> list[bytes]:
    groups = Link("bridge", "2 devices", 1e-6, 1e11), Link("net", "all", 1e-5, 1e9, 1e10)
    models = (DEFAULT, replace(DEFAULT, links=LinkModel(groups), measures=True))
    return [topology_text(model).encode() for model in models]


def _open_topology(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "links.toml"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        found = read_topology(path)
        pair = [Device("gpu", number % 3, 0), Device("gpu", number % 2, 1)]
        assert exchange_seconds("all_reduce", pair, 64.0, found.links) >= 0

    return read


def _recordings() -> list[bytes]:
    x, results = np.ones((2, 3), np.float32), (np.zeros(2, np.int32), None)
    steps = tuple(RecordedStep("train", i, (x * i,), results) for i in range(3))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "steps.zip")
        write_recording(file, Recording(2, steps, {0: {"w": x}, 2: {"w": 2 * x}}))
        return [file.read_bytes()]


def _mutate_recording(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes, or an archive with sound checksums around a changed header."""
    if rng.random() < 0.5:
        return mutate_bytes(data, rng)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as sound, zipfile.ZipFile(made, "w") as changed:
        for name in sound.namelist():
            member = sound.read(name)
            new = mutate_document(member, rng) if name == "header" else member
            changed.writestr(zipfile.ZipInfo(name), new)
    return made.getvalue()


def _open_recording(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "steps.zip"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        found = read_recording(path)
        assert found.count == int(found.count)

    return read


def _rules() -> list[bytes]:
    ops = ("sgd_update",), ("clip_by_scalar", "matmul")
    entries = ([op_entry(default_registry(), name) for name in names] for names in ops)
    return [json.dumps(catalog_json(row)).encode() for row in entries]


def _open_rules(folder: Path) -> Callable[[bytes, int], object]:
    path = folder / "rules.json"

    def read(data: bytes, number: int) -> None:
        path.write_bytes(data)
        try:
            found = read_rules(path)
        except RulesError as error:  # flow-rules does not depend on flow-core
            raise FlowError("reading rules", found=str(error)) from None
        assert all(str(rule) for op in found.ops for case in op.cases for rule in case.rules)

    return read


TARGETS = (
    Target("rules", _rules, _open_rules, mutate_document, weight=0.5),
    Target("recorded-steps", _recordings, _open_recording, _mutate_recording, weight=0.5),
    Target("topology", _topologies, _open_topology, weight=0.5),
    Target("plan", _plans, _open_plan, mutate_document, weight=0.5),
    Target(
        "annotation",
        lambda: [text.encode() for text in _ANNOTATIONS],
        _open_annotation,
        _mutate_annotation,
    ),
)
