"""Wrong calls of all public functions and classes: unknown, repeated, missing and mistyped
arguments.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mistakes import here, mistake

import oneflow as flow
import oneflow.typing as tp
from flow_core.api.calls.foreign_names import _NOTES, _SAME, advice
from flow_core.base.errors import CallError, FlowError

untyped: Any = flow
IMAGES = tp.Numpy.Placeholder((1, 3, 8, 8))


def namespaces() -> Iterator[Any]:
    root = Path(flow.__file__).parent
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if not parts[-1].startswith("_") or parts[-1] == "__init__":
            yield import_module(name)


def callables() -> dict[str, Any]:
    """All public functions and classes, by the names under which programs find them."""
    found = {}
    for module in namespaces():
        for name in dir(module):
            value = None if name.startswith("_") else getattr(module, name)
            own = str(getattr(value, "__module__", "")).startswith(("flow_", "oneflow."))
            if own and name != "piece" and (inspect.isfunction(value) or inspect.isclass(value)):
                found[f"{module.__name__}.{name}"] = value
    return {n: f for n, f in found.items() if not (inspect.isclass(f) and issubclass(f, Enum))}


CALLABLES = callables()


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def test_the_cases_are_all_functions_and_classes() -> None:
    assert len(CALLABLES) > 700
    assert {"oneflow.nn.relu", "oneflow.data.BlobConf", "oneflow.image_decode"} <= {*CALLABLES}
    assert {"oneflow.compatible.single_client.matmul", "oneflow.optimizer.Adam"} <= {*CALLABLES}


def test_unknown_keywords_of_everything_public() -> None:
    open_ended = {
        name
        for name, function in CALLABLES.items()
        if any(p.kind is p.VAR_KEYWORD for p in parameters(function))
    }
    assert {name.rpartition(".")[2] for name in open_ended} == {
        "export",
        "inter_job_reuse_mem_strategy",
        "load",
    }
    for name, function in CALLABLES.items():
        if name not in open_ended:
            with pytest.raises(CallError, match=r"no parameter named no_such") as caught:
                function(no_such_parameter=1)
            assert caught.value.at == here(-1), name


def test_missing_arguments_of_everything_public() -> None:
    count = 0
    for name, function in CALLABLES.items():
        variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        needed = [
            p.name for p in parameters(function) if p.default is p.empty and p.kind not in variadic
        ]
        if needed:
            count += 1
            with pytest.raises(CallError) as caught:
                function()
            assert caught.value.found == f"no argument for {', '.join(needed)}", name
            assert caught.value.at == here(-2), name
    assert count > 500


@pytest.mark.parametrize(
    ("call", "found", "hint"),
    [
        (
            lambda: untyped.optimizer.Adam(lr=1e-3),
            "no parameter named lr; no argument for lr_scheduler",
            "lr is lr_scheduler here",
        ),
        (
            lambda: untyped.math.reduce_mean(None, dim=1),
            "no parameter named dim",
            "dim is axis here",
        ),
        (
            lambda: untyped.layers.conv2d(None, in_channels=3),
            "no parameter named in_channels; no argument for filters",
            "in_channels: leave it out: the input's shape determines the size",
        ),
        (
            lambda: untyped.nn.max_pool2d(None, kernel_size=2, stride=2, padding=0),
            "no parameter named kernel_size or stride; no argument for ksize, strides",
            "kernel_size is ksize here; stride is strides here",
        ),
        (lambda: untyped.nn.relu(1, x=1), "x given by position and by name", None),
        (lambda: untyped.nn.relu(1, "a", 2), "3 positional arguments, more than 2", None),
        (lambda: untyped.nn.relu(1, nmae="a"), "no parameter named nmae", "did you mean name?"),
        (lambda: untyped.train.CheckPoint(1), "1 positional arguments, more than 0", None),
        (
            lambda: untyped.optimizer.SGD(0.1).minimize(los=1),
            "no parameter named los; no argument for loss",
            "did you mean loss?",
        ),
        (
            lambda: untyped.typing.Numpy.Placeholder((2,), dtyp=flow.int32),
            "no parameter named dtyp",
            "did you mean dtype?",
        ),
        (
            lambda: untyped.optimizer.grad_clipping.by_global_norm(norm=1),
            "no parameter named norm; no argument for clip_norm",
            "did you mean clip_norm?",
        ),
    ],
)
def test_the_hint_names_the_parameter(call: Any, found: str, hint: str | None) -> None:
    with pytest.raises(CallError) as caught:
        call()
    assert caught.value.found == found
    assert caught.value.hint == hint
    assert str(caught.value.allowed).startswith(("flow.", "no arguments"))
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_methods_are_named_after_the_class_of_the_object() -> None:
    for kind in (untyped.optimizer.SGD, untyped.optimizer.Adam):
        with mistake(CallError, rf"flow\.optimizer\.{kind.__name__}\.minimize\(los\)") as lines:
            lines.append(here(1))
            kind(0.1).minimize(los=1)


@pytest.mark.parametrize(
    ("call", "found", "allowed"),
    [
        (
            lambda x: untyped.layers.conv2d(x, 8, 3, data_format=3),
            "data_format=3 (int)",
            'a text: "NCW", "NCHW"',
        ),
        (lambda x: untyped.nn.conv2d(x, 3, 1, "SAME"), "filters=3 (int)", "a blob: "),
        (
            lambda x: untyped.nn.conv2d_transpose(x, x, (1, 3, 8, 8), 1, padding=1),
            "padding=1 (int)",
            'a text: "VALID" or "SAME"',
        ),
    ],
)
def test_a_wrong_type_is_named_with_the_documentation_of_its_parameter(
    call: Any, found: str, allowed: str
) -> None:
    errors = []

    @flow.global_function()
    def job(x: IMAGES) -> tp.Numpy:  # type: ignore[valid-type]
        try:
            call(x)
        except CallError as error:
            errors.append(error)
        return x  # type: ignore[no-any-return]

    job.prepare()
    (error,) = errors
    assert error.found == found
    assert str(error.allowed).startswith(allowed)
    assert error.at is not None
    assert error.at.line == call.__code__.co_firstlineno


def test_errors_of_the_programs_own_functions_are_kept() -> None:
    def activation(y: Any, name: str) -> Any:
        return 1 + None  # type: ignore[operator]

    @flow.global_function()
    def job(x: IMAGES) -> tp.Numpy:  # type: ignore[valid-type]
        with pytest.raises(TypeError, match="unsupported operand") as caught:
            untyped.layers.dense(x, 3, activation=activation, trainable="x")
        assert not isinstance(caught.value, FlowError)
        return x  # type: ignore[no-any-return]

    job.prepare()


def test_a_wrong_call_in_a_callback_is_at_its_line() -> None:
    lines = []

    def activation(y: Any, name: str) -> Any:
        lines.append(here(1))
        return untyped.nn.relu(y, nmae=name)

    @flow.global_function()
    def job(x: IMAGES) -> tp.Numpy:  # type: ignore[valid-type]
        with pytest.raises(CallError, match=r"flow\.nn\.relu\(nmae\)") as caught:
            untyped.layers.dense(x, 3, activation=activation)
        assert caught.value.at == lines[0]
        return x  # type: ignore[no-any-return]

    job.prepare()


def test_functions_keep_their_signature_documentation_and_pickles() -> None:
    assert list(inspect.signature(flow.nn.relu).parameters) == ["x", "name"]
    assert next(iter(inspect.signature(flow.optimizer.SGD).parameters)) == "lr_scheduler"
    assert list(inspect.signature(flow.train.CheckPoint).parameters) == []
    assert flow.nn.relu.__name__ == "relu"
    assert "Example:" in str(flow.nn.relu.__doc__)
    assert inspect.getsource(flow.nn.relu).startswith("def relu(")
    for value in (flow.nn.relu, flow.optimizer.Adam, flow.get_variable):
        assert pickle.loads(pickle.dumps(value)) is value


def test_the_names_of_other_libraries_lead_to_parameters() -> None:
    known = {p.name for function in CALLABLES.values() for p in parameters(function)}
    for group in _SAME:
        assert known & {*group}, group
    for names, note in _NOTES:
        for name in names.split():
            assert advice(name, []) == f"{name}: {note}"
