"""SGD with a sum of products has the bits of separate products, sum and update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery, KernelSpec
from flow_core.testing.checks import run_kernel
from flow_onednn.kernels import summed_sgd
from flow_onednn.kernels.summed_sgd import OP, SummedSgd, build
from flow_onednn.library import Missing, state
from flow_onednn.native import compiler
from flow_onednn.recipes import problem

_STATE = state()
pytestmark = [
    pytest.mark.skipif(
        isinstance(_STATE, Missing), reason=f"no oneDNN: {getattr(_STATE, 'reason', '')}"
    ),
    pytest.mark.skipif(not compiler.available(), reason="no C compiler"),
]

SHAPES = [(784, 25, 512), (512, 25, 10), (17, 3, 33), (64, 600, 32)]
SGD = {"scale": 0.5, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0}
PRODUCT = {"transpose_a": True, "transpose_b": False, "alpha": 1.0}


def find(query: KernelQuery) -> KernelSpec:
    return default_registry().find_kernel(query, "cpu")


def asked(shape: tuple[int, int, int], factor: bool = False, **attrs: Any) -> KernelQuery:
    rows, deep, columns = shape
    number = tensor_type((), float32)
    pair = (tensor_type((deep, rows), float32), tensor_type((deep, columns), float32))
    model = tensor_type((rows, columns), float32)
    numbers = (number, number) if factor else (number,)
    given = Attrs({**SGD, **PRODUCT, "parts": 3, **attrs})
    return KernelQuery(OP, given, (model, *numbers, *pair * 3), (), find)


def updated(query: KernelQuery, arrays: list[Any]) -> Any:
    """Return the variable after the op, which overwrites it."""
    given = [x.copy() for x in arrays]
    run_kernel(find(query), query, given)
    return given[0]


@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_update_has_the_bits_of_separate_ops(
    shape: tuple[int, int, int], factor: bool
) -> None:
    query, rng = asked(shape, factor), np.random.default_rng(1)
    arrays = [np.asarray(rng.standard_normal(t.shape, np.float32)) for t in query.inputs]
    one = KernelQuery("matmul", Attrs(PRODUCT), query.inputs[-2:], query.inputs[:1], find)
    terms = [run_kernel(find(one), one, arrays[at : at + 2])[0] for at in (-6, -4)]
    terms += run_kernel(find(one), one, arrays[-2:])
    model = query.inputs[0]
    sgd = KernelQuery("sgd_update", Attrs(SGD), (model, model, *query.inputs[1:-6]), (), find)
    wanted = updated(sgd, [arrays[0], terms[0] + terms[1] + terms[2], *arrays[1:-6]])
    np.testing.assert_array_equal(updated(query, arrays), wanted)


def test_primitive_is_used_where_its_bits_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = problem(asked((784, 25, 512)))
    if not isinstance(build(question), SummedSgd):
        pytest.skip("this library's primitive has other bits")
    monkeypatch.setattr(summed_sgd, "_same_bits", lambda *_: False)
    assert build(question) is None


@pytest.mark.parametrize("attrs", [{"alpha": 2.0}, {"l2": 0.1}, {"weight_decay": 0.1}])
def test_unsupported_attributes_use_several_primitives(attrs: dict[str, float]) -> None:
    query = asked((64, 25, 32), False, **attrs)
    assert build(problem(query)) is None
    assert find(query).name.startswith("numpy.")
