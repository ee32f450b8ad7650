"""What users of PyTorch, Keras and numpy get wrong in the first week, with the answer to each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import FIXED

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import (
    AnnotationError,
    CallError,
    CheckpointError,
    DataError,
    DeviceUnavailableError,
    FeedError,
    FlowError,
    InferenceError,
    JobError,
    NoValueError,
    OutsideJobError,
)

ROWS, IMAGES = (4, 3), (2, 3, 8, 8)
ONES = np.ones(ROWS, np.float32)
CLASSES = np.zeros(4, np.int32)

dense, conv2d = flow.layers.dense, flow.layers.conv2d
cross_entropy = flow.nn.sparse_softmax_cross_entropy_with_logits


def predict(body: Callable[[Any], Any], x: Any = ONES, shape: tuple[int, ...] = ROWS) -> Any:
    """Define a predict job of a body, and call it."""

    def job(x: Any) -> Any:
        return body(x)

    job.__annotations__ = {"x": tp.Numpy.Placeholder(shape), "return": tp.Numpy}
    return flow.global_function()(job)(x)


def images(body: Callable[[Any], Any], shape: tuple[int, ...] = IMAGES) -> Any:
    """Define a predict job of a body on images, and call it."""
    return predict(body, np.ones(shape, np.float32), shape)


def loss_of(x: Any, labels: Any) -> Any:
    return cross_entropy(labels, dense(x, 3))


def train(
    body: Callable[[Any, Any], Any],
    x: Any = ONES,
    labels: Any = CLASSES,
    dtype: Any = flow.int32,
) -> Any:
    """Define a train job of a body, and call it with rows and labels."""

    def job(x: Any, labels: Any) -> Any:
        return body(x, labels)

    placeholders = tp.Numpy.Placeholder(ROWS), tp.Numpy.Placeholder((4,), dtype=dtype)
    job.__annotations__ = {"x": placeholders[0], "labels": placeholders[1], "return": tp.Numpy}
    return flow.global_function("train")(job)(x, labels)


def minimized(
    optimize: Callable[[Any], Any] = lambda loss: flow.optimizer.SGD(0.1).minimize(loss), **fed: Any
) -> Any:
    """Train with an optimizer that the argument makes and applies."""

    def body(x: Any, labels: Any) -> Any:
        loss = loss_of(x, labels)
        optimize(loss)
        return loss

    return train(body, **fed)


def twice(loss: Any) -> None:
    for _ in range(2):
        flow.optimizer.SGD(0.1).minimize(loss)


def saved_twice() -> None:
    minimized()
    for _ in range(2):
        flow.checkpoint.save("model")


def on(device: str) -> Any:
    """Add one on a device."""

    def body(x: Any) -> Any:
        with flow.scope.placement(device, "0:0"):
            return x + 1

    return predict(body)


def without_annotation() -> Any:
    @flow.global_function()
    def job(x):  # type: ignore[no-untyped-def]
        return x

    return job(ONES)


def without_result() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(ROWS)) -> tp.Numpy:  # type: ignore[empty-body]
        flow.nn.relu(x)

    return job(ONES)


class Network(flow.nn.Module):
    """A network as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = flow.nn.Linear(3, 4)  # type: ignore[attr-defined]


Mistake = tuple[Callable[[], Any], type[Exception], tuple[str, ...]]

MISTAKES: dict[str, Mistake] = {
    # what, the error, parts of its text
    "activation by name": (
        lambda: predict(lambda x: dense(x, 4, activation="relu")),
        InferenceError,
        ("activation='relu'", "allowed: a function of a blob, such as flow.nn.relu"),
    ),
    "padding by another name": (
        lambda: images(lambda x: conv2d(x, 8, 3, padding="sam")),
        InferenceError,
        ("padding='sam'", "allowed: SAME", "a number"),
    ),
    "lr of Adam": (
        lambda: minimized(lambda loss: flow.optimizer.Adam(lr=1e-3).minimize(loss)),
        CallError,
        ("no parameter named lr", "next:    lr is lr_scheduler here"),
    ),
    "learning_rate of Adam": (
        lambda: minimized(lambda loss: flow.optimizer.Adam(learning_rate=1e-3).minimize(loss)),
        CallError,
        ("no parameter named learning_rate", "next:    learning_rate is lr_scheduler here"),
    ),
    "parameters first": (
        lambda: minimized(lambda loss: flow.optimizer.Adam([], 1e-3).minimize(loss)),
        InferenceError,
        ("lr_scheduler []", "allowed: a number for a constant rate, or a scheduler"),
    ),
    "a schedule by name": (
        lambda: minimized(lambda loss: flow.optimizer.Adam("cosine").minimize(loss)),
        InferenceError,
        ("lr_scheduler 'cosine'", "allowed: a number for a constant rate, or a scheduler"),
    ),
    "out_features": (
        lambda: predict(lambda x: dense(x, out_features=4)),
        CallError,
        ("no parameter named out_features", "out_features is units here"),
    ),
    "in_features": (
        lambda: predict(lambda x: dense(x, 4, in_features=3)),
        CallError,
        ("no parameter named in_features", "leave it out: the input's shape determines the size"),
    ),
    "p of dropout": (
        lambda: predict(lambda x: flow.nn.dropout(x, p=0.5)),
        CallError,
        ("no parameter named p", "p is rate here"),
    ),
    "training of dropout": (
        lambda: predict(lambda x: flow.nn.dropout(x, 0.5, training=True)),
        CallError,
        ("no parameter named training", 'leave it out: jobs of type "train" train'),
    ),
    "dim of softmax": (
        lambda: predict(lambda x: flow.nn.softmax(x, dim=-1)),
        CallError,
        ("no parameter named dim", "dim is axis here"),
    ),
    "a name with a typo": (
        lambda: predict(lambda x: flow.nn.rleu(x)),
        JobError,
        ("has no attribute 'rleu'; did you mean relu",),
    ),
    "view": (
        lambda: predict(lambda x: x.view(3, 4)),
        JobError,
        ("a blob has no 'view'; use flow.reshape(blob, shape)",),
    ),
    "numpy on a blob": (
        lambda: predict(lambda x: np.sum(x)),
        NoValueError,
        ("numpy's view of BlobDef", "next:    compute with flow's functions"),
    ),
    "if on a blob": (
        lambda: predict(lambda x: x if x > 0 else -x),
        NoValueError,
        ("truth value of BlobDef", "next:    compute with flow.where(...)"),
    ),
    "a loop over a blob": (
        lambda: predict(lambda x: sum(row for row in x)),
        NoValueError,
        ("a loop over BlobDef", "next:    loop over range(blob.shape[0])"),
    ),
    "assignment to a row": (
        lambda: predict(lambda x: x.__setitem__(0, 1)),
        NoValueError,
        ("an assignment to a part of BlobDef", "next:    flow.slice_update(blob, part"),
    ),
    "float of a loss": (
        lambda: train(lambda x, labels: float(loss_of(x, labels))),
        NoValueError,
        ("a Python number of BlobDef", "return the blob, and go on with the job's result"),
    ),
    "backward": (
        lambda: train(lambda x, labels: loss_of(x, labels).backward()),
        JobError,
        ("a blob has no 'backward'; use flow.optimizer.SGD(rate).minimize(loss)",),
    ),
    "step": (
        lambda: minimized(lambda loss: flow.optimizer.SGD(0.1).step()),
        JobError,
        ("an optimizer has no 'step'; use minimize(loss) in the job",),
    ),
    "no annotation": (
        without_annotation,
        AnnotationError,
        ("parameter 'x' of job 'job'", "no annotation", "next:    write x: Annotated[tp.Numpy"),
    ),
    "no result": (
        without_result,
        AnnotationError,
        ("found:   None", "next:    return the blob, or annotate the job with -> None"),
    ),
    "label 7 of 3 classes": (
        lambda: minimized(labels=np.full(4, 7, np.int32)),
        DataError,
        ("4 of 4 labels outside of the classes, such as 7", "allowed: 0 <= label < 3"),
    ),
    "broken numbers as labels": (
        lambda: minimized(labels=np.full(4, 0.5, np.float32)),
        FeedError,
        ("feeding 'labels' of job 'job'", "an array of float32 with the number 0.5", "int32"),
    ),
    "labels of floating point": (
        lambda: minimized(labels=np.zeros(4, np.float32), dtype=flow.float32),
        InferenceError,
        ("labels float32[4]", "allowed: labels of shape (4,), of type int32"),
    ),
    "logits before labels": (
        lambda: train(lambda x, labels: cross_entropy(dense(x, 3), labels)),
        InferenceError,
        ("labels of shape (4, 3) for scores of shape (4,)", "labels come first"),
    ),
    "another batch size": (
        lambda: minimized(x=np.ones((5, 3), np.float32)),
        FeedError,
        ("feeding 'x'", "shape (5, 3)", "allowed: shape (4, 3)", "Placeholder((None, 3))"),
    ),
    "another name of an argument": (
        lambda: flow.global_function()(lambda x=FIXED: x)(y=ONES),
        FeedError,
        ("no parameter y", "missing a required argument: 'x'", "allowed: <lambda>(x)"),
    ),
    "an existing checkpoint": (
        saved_twice,
        CheckpointError,
        ("which already exists", "next:    save to another path, or pass overwrite=True"),
    ),
    "no checkpoint": (
        lambda: flow.load_variables(flow.checkpoint.get("model")),
        CheckpointError,
        ("loading model", "no such path", "allowed: a checkpoint in one of the formats"),
    ),
    "no optimizer": (
        lambda: train(loss_of),
        JobError,
        ("without an optimizer", "allowed: a call of an optimizer's minimize(loss)"),
    ),
    "two optimizers for a loss": (
        lambda: minimized(twice),
        JobError,
        ("its gradient would be applied twice", "next:    remove one; or limit both"),
    ),
    "a device of torch": (
        lambda: on("cuda"),
        DeviceUnavailableError,
        ("type 'cuda'", "available device types: cpu", "GPUs of NVIDIA are of type 'gpu'"),
    ),
    "no driver of a GPU": (
        lambda: on("gpu"),
        DeviceUnavailableError,
        ("type 'gpu'", "available device types: cpu", "to run it on the CPU"),
    ),
    "a function outside of a job": (
        lambda: flow.nn.relu(ONES),
        OutsideJobError,
        ("use of relu", "allowed: inside a function decorated with @flow.global_function"),
    ),
    "sizes of a product": (
        lambda: predict(lambda x: flow.matmul(x, x)),
        InferenceError,
        ("inner sizes 3 and 4", "transpose_a=True or transpose_b=True swaps the last two axes"),
    ),
    "another type of job": (
        lambda: flow.global_function("trian"),
        JobError,
        ("type='trian'", 'allowed: "train" or "predict"', "did you mean train?"),
    ),
    "a network as a class": (
        Network,
        AttributeError,
        ("flow.nn.Linear", "use flow.layers.dense(x, units)"),
    ),
    "Sequential of Keras": (
        lambda: flow.keras.Sequential,  # type: ignore[attr-defined]
        AttributeError,
        ("'Sequential'; use a Python function that calls layers",),
    ),
    "fit of Keras": (
        lambda: flow.global_function()(lambda x=FIXED: x).fit,
        AttributeError,
        ("a job has no 'fit'; use flow_fit.fit(job, batches, epochs)",),
    ),
}


@pytest.mark.parametrize(("mistake", "kind", "parts"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_its_answer(
    mistake: Callable[[], Any],
    kind: type[Exception],
    parts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        mistake()
    text = str(caught.value)
    assert [part for part in parts if part not in text] == [], text
    if issubclass(kind, FlowError):
        assert re.search(rf"{re.escape(__file__)}:\d+", text), text


@pytest.mark.parametrize(
    ("shape", "called"),
    [
        ((2, 8, 8, 8), lambda x: conv2d(x, 8, 3, padding=1)),
        ((2, 8, 6, 6), lambda x: conv2d(x, 8, 3, padding="valid")),
        ((2, 3, 8, 2), lambda x: x[..., 0:2]),
        ((2, 3), lambda x: flow.einsum("nchw->nc", x)),
        ((2, 3, 8, 5), lambda x: dense(dense(x, 4), 5)),
    ],
    ids=["padding=1", "lower case", "a part", "einsum", "two layers without names"],
)
def test_what_users_write_elsewhere_works(
    shape: tuple[int, ...], called: Callable[[Any], Any]
) -> None:
    assert images(called).shape == shape


def test_images_with_the_channels_last_get_a_warning() -> None:
    with pytest.warns(Warning, match=r'(?s)as NCHW: images of 8 channels.*data_format="NHWC"'):
        images(lambda x: conv2d(x, 8, 3), (2, 8, 8, 3))


def test_the_table_is_long_enough() -> None:
    assert len(MISTAKES) >= 34
