"""Symbols of update rules, and the numpy calls that compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.builtin.numpy_kernels.training.lowering import lower
from flow_core.ir.formulas import PYTHON, Elements, Number, Trace, phases, sign, sqrt, square


def trace(**numbers: Any) -> Any:
    return Trace(("w", "g", "m"), {"rate": Number("rate"), **numbers})


def coefficients(x: Elements, **values: float) -> list[float]:
    """Return the values of the coefficients of elements."""
    texts = (c.text if isinstance(c, Number) else repr(c) for c, _ in x.terms)
    return [eval(text, {**PYTHON, **values}) for text in texts]


def test_products_of_numbers_are_one_coefficient() -> None:
    u = trace(scale=Number("scale"))
    u.w = u.w - u.rate * (u.scale * u.g)
    (statement,) = u.statements
    assert coefficients(statement.value, rate=6.0, scale=1 / 6) == [1.0, -1.0]
    assert [call.function for call in lower(u.statements).calls] == [np.multiply, np.add]


def test_coefficients_of_equal_arrays_are_added() -> None:
    u = trace()
    u.w = (1.0 - u.rate * 0.5) * u.w - u.rate * (u.g + 2.0 * u.w)
    (statement,) = u.statements
    assert coefficients(statement.value, rate=0.1) == pytest.approx([0.75, -0.1])


def test_quotients_keep_the_coefficient_of_the_dividend() -> None:
    x = trace().rate * ((3.0 * trace().g) / (sqrt(trace().m) + 1e-3))
    assert coefficients(x, rate=2.0) == [6.0]


def test_sums_of_numbers_and_elements_are_elements_in_either_order() -> None:
    u = trace()
    for x in (u.rate + u.g, u.g + u.rate, 1.0 - u.g, u.rate - u.g):
        assert isinstance(x, Elements)
    assert coefficients(u.rate - u.g, rate=2.0) == [-1.0, 2.0]


def test_known_numbers_vanish() -> None:
    u = trace(decay=0.0)
    u.w = (1.0 - u.rate * u.decay) * u.w + u.m
    (statement,) = u.statements
    assert coefficients(statement.value) == [1.0, 1.0]


def test_norms_end_the_first_phase() -> None:
    u = trace()
    u.m = u.m + u.g
    u.local = u.norm(2.0 * u.g) / u.norm(u.m)
    u.w = u.w - u.local * u.m
    first, second = phases(u.statements)
    assert [s.name for s in first] == ["m", "norm0", "norm1"]
    assert [s.name for s in second] == ["local", "w"]
    assert isinstance(second[0].value, Number)
    assert eval(second[0].value.text, {**PYTHON, "norm0": 3.0, "norm1": 4.0}) == 1.5


def test_temporaries_are_few() -> None:
    u = trace()
    u.m = 0.9 * u.m + square(0.1 * u.g)
    u.w = u.w - u.rate * (u.g / (sqrt(u.m) + 1e-8))
    assert lower(u.statements).temporaries == 1


def test_an_array_that_is_overwritten_too_early_is_an_error() -> None:
    u = trace()
    u.w = 0.5 * u.w - sign(u.w)
    with pytest.raises(ValueError, match="w is overwritten before a function of w"):
        lower(u.statements)


def test_unknown_names_are_an_error() -> None:
    with pytest.raises(AttributeError, match="reads momentun, which is no input"):
        _ = trace().momentun


def test_products_of_elements_are_an_error() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = trace().w * trace().g
