"""Checks one installed subset of the packages: ``python -I check_subset.py core+typing``.

Not a pytest module: it runs in a fresh environment that has the subset and nothing else.
What is installed must work, and what is not must be named by the error.
"""

import importlib
import importlib.metadata
import inspect
import sys
import types
from collections.abc import Callable

from flow_core.base.errors import install_command

SUBSETS = {
    "core": (),
    "core+typing": ("typing",),
    "core+typing+data": ("typing", "data"),
    "all": ("typing", "data", "cuda", "dist", "onednn", "onnx", "serve"),
}
FACADE_PIECES = ("typing", "data")  # those with a module in oneflow
HEAVY = (
    "PIL",
    "cffi",
    "click",
    "cupy",
    "cv2",
    "hypothesis",
    "mpi4py",
    "onnx",
    "pytest",
    "rich",
    "safetensors",
    "scipy",
)


def message_of(kind: type[Exception], action: Callable[[], object]) -> str:
    """What the error says that the action raises."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, but nothing was raised")


def check_import_is_light() -> types.ModuleType:
    """Importing oneflow brings no optional library, installed or not."""
    assert "oneflow" not in sys.modules
    flow = importlib.import_module("oneflow")
    loaded = [name for name in HEAVY if name in sys.modules]
    assert not loaded, f"`import oneflow` imported {loaded}"
    return flow


def check_distributions(pieces: tuple[str, ...]) -> None:
    """Exactly the packages of the subset are installed and registered as plugins."""
    found = {point.name for point in importlib.metadata.entry_points(group="flow.plugins")}
    expected = {f"flow-{piece}" for piece in pieces}
    assert found == expected, f"plugins: expected {sorted(expected)}, found {sorted(found)}"
    for distribution in ("flow-core", *sorted(expected)):
        package = importlib.import_module(distribution.replace("-", "_"))
        version = importlib.metadata.version(distribution)
        assert package.__version__ == version, (distribution, package.__version__, version)


def check_present(flow: types.ModuleType, piece: str) -> None:
    """The piece is an attribute of oneflow, listed by dir(), and a module to import from."""
    assert hasattr(flow, piece), f"oneflow.{piece} is missing although flow-{piece} is installed"
    assert piece in dir(flow), f"dir(oneflow) does not list {piece}"
    module = importlib.import_module(f"oneflow.{piece}")
    assert getattr(flow, piece) is module, f"oneflow.{piece} is not the module of that name"


def check_absent(flow: types.ModuleType, piece: str) -> None:
    """The piece is no attribute, and importing it says which package provides it."""
    assert not hasattr(flow, piece), f"oneflow has {piece} although flow-{piece} is not installed"
    assert piece not in dir(flow), f"dir(oneflow) lists {piece}, which is not installed"
    expected = (
        f"oneflow.{piece} is provided by the optional package flow-{piece}: "
        f"{install_command(f'flow-{piece}')}"
    )
    found = message_of(ModuleNotFoundError, lambda: importlib.import_module(f"oneflow.{piece}"))
    assert found == expected, f"import oneflow.{piece}: expected {expected!r}, found {found!r}"
    assert not hasattr(flow, piece), f"the failed import left oneflow.{piece} behind"


def check_typo(flow: types.ModuleType) -> None:
    """A name that does not exist is an AttributeError which repeats it."""
    found = message_of(AttributeError, lambda: flow.no_such_name)
    assert "no_such_name" in found, found


def check_training() -> None:
    """A small job function learns a linearly separable task."""
    import numpy as np

    import oneflow as flow
    import oneflow.typing as tp

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((32, 8), dtype=flow.float),
        labels: tp.Numpy.Placeholder((32,), dtype=flow.int32),
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            initializer = flow.truncated_normal(0.1)
            hidden = flow.layers.dense(
                images, 16, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden"
            )
            logits = flow.layers.dense(hidden, 2, kernel_initializer=initializer, name="output")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="loss")
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
        flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
        return loss

    flow.train.CheckPoint().init()
    rng = np.random.default_rng(0)
    images = rng.normal(size=(32, 8)).astype(np.float32)
    labels = (images.sum(axis=1) > 0).astype(np.int32)
    losses = [float(train_job(images, labels).mean()) for _ in range(20)]
    assert np.isfinite(losses).all(), losses
    assert losses[-1] < 0.7 * losses[0], f"the loss did not fall: {losses}"


def check_docstrings(flow: types.ModuleType) -> None:
    """Wheels contain whole docstrings, which editors read without importing the modules."""
    source = inspect.getsource(inspect.unwrap(flow.math.exp))
    assert "name: name of the op, " in source, source


def main(subset: str) -> None:
    """Run every check that applies to the subset."""
    pieces = SUBSETS[subset]
    flow = check_import_is_light()
    check_distributions(pieces)
    for piece in FACADE_PIECES:
        check = check_present if piece in pieces else check_absent
        check(flow, piece)
    check_typo(flow)
    check_docstrings(flow)
    if "typing" in pieces:
        check_training()
    print(f"facade: {subset}: ok")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SUBSETS:
        sys.exit(f"usage: check_subset.py {{{'|'.join(SUBSETS)}}}")
    main(sys.argv[1])
