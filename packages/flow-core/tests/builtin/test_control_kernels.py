"""The kernel of branches runs the launches of the taken body alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from flow_core.base.dtypes import as_dtype
from flow_core.builtin.numpy_kernels.control.cond import KERNELS
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load

TWICE = ((("twice", "scalar_mul", ((-1, 0),), (("operand", 2.0),)),), ((0, 0),))
ROOT = ((("root", "sqrt", ((-1, 0),), ()),), ((0, 0),))


@pytest.mark.parametrize(("on", "wanted"), [(1, "scalar_mul"), (0, "sqrt"), (np.nan, "scalar_mul")])
def test_one_body_runs(on: float, wanted: str) -> None:
    ran: list[str] = []

    def find(query: KernelQuery) -> KernelSpec:
        return KernelSpec(query.op, "cpu", lambda _: partial(ran.append, query.op))

    attrs = Attrs({"then": TWICE, "otherwise": ROOT, "draws_as": ""})
    one, pair = (tensor_type((n,), as_dtype("float32")) for n in (1, 2))
    query = KernelQuery("cond", attrs, (one, pair), (pair,), find)
    arrays = np.full(1, on, np.float32), np.ones(2, np.float32)
    out = (np.ones(2, np.float32),)
    load(KERNELS[0].load)(BindContext(query, arrays, out, np.empty(0, np.uint8)))()
    assert ran == [wanted]
