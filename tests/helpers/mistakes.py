"""What the tests of errors share: an expected error with its line, and parts of wrong programs."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, SourceLine

FIXED = flow.FixedTensorDef((2, 3))
PAIR = tp.Numpy.Placeholder((2, 3))
ZEROS = np.zeros((2, 3), np.float32)


def here(further: int = 0) -> SourceLine:
    """The caller's line, or one further down."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return SourceLine(frame.f_back.f_code.co_filename, frame.f_back.f_lineno + further)


def line_of(function: Callable[..., Any], further: int = 0) -> SourceLine:
    """The first line of a function, or one further down."""
    code = function.__code__
    return SourceLine(code.co_filename, code.co_firstlineno + further)


@contextmanager
def mistake(kind: type[FlowError], text: str) -> Iterator[list[SourceLine]]:
    """Expects an error of a kind, with a text and at the line that is put into the list."""
    lines: list[SourceLine] = []
    with pytest.raises(kind, match=text) as caught:
        yield lines
    error = caught.value
    assert type(error) is kind
    assert error.at == lines[0], error
    assert f"(at {lines[0]})" in str(error)


def sgd(loss: Any) -> None:
    """Minimizes a loss, on this function's second line but one."""
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(schedule, momentum=0).minimize(loss)


SGD_LINE = line_of(sgd, 3)


def weight(shape: tuple[int, ...] = (2, 3)) -> Any:
    """A variable of ones."""
    return flow.get_variable("w", shape=shape, initializer=flow.ones_initializer())
