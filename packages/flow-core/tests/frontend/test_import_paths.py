"""Import paths of programs written for other versions of OneFlow."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import oneflow as flow

LATER = "oneflow.compatible.single_client"


def taken() -> dict[str, ModuleType]:
    """Unload the modules of the later path, and return them."""
    names = [name for name in sys.modules if name.startswith("oneflow.compatible")]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def without_copies() -> Iterator[None]:
    """Let a test import modules through the later path for the first time."""
    before = taken()
    yield
    taken()
    sys.modules.update(before)  # other tests compare them


def test_distributions_are_importable_by_module_path() -> None:
    util = importlib.import_module("oneflow.python.framework.distribute")
    assert util.split is flow.distribute.split
    assert util.broadcast is flow.distribute.broadcast


def test_unique_op_names_are_distinct() -> None:
    util = importlib.import_module("oneflow.python.framework.id_util")
    first, second = util.UniqueStr("Logistic_"), util.UniqueStr("Logistic_")
    assert first != second
    assert first.startswith("Logistic_")


@pytest.mark.usefixtures("without_copies")
def test_later_path_exposes_the_same_api() -> None:
    later = importlib.import_module(LATER)
    assert later.global_function is flow.global_function
    assert later.math is flow.math
    assert dir(later) == dir(flow)


@pytest.mark.usefixtures("without_copies")
def test_submodules_of_the_later_path_do_not_replace_those_of_the_facade() -> None:
    nn, typing = flow.nn, flow.typing
    later = importlib.import_module(f"{LATER}.nn")
    assert later.conv2d is not flow.nn.conv2d, "the parameters of 0.5 differ"
    assert later.relu is flow.nn.relu
    assert importlib.import_module(f"{LATER}.typing").Numpy is flow.typing.Numpy
    assert flow.nn is nn
    assert flow.typing is typing


@pytest.mark.usefixtures("without_copies")
def test_misspelt_name_on_the_later_path_is_reported() -> None:
    with pytest.raises(AttributeError, match=r"global_functoin.*global_function"):
        getattr(importlib.import_module(LATER), "global_functoin")  # noqa: B009 - the module has type Any
