"""User-defined ops with Python kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import DataError, FlowError, GraphError
from flow_core.ops.system.python_kernel import known
from flow_typing import Numpy

DECLARED = """
// REGISTER_USER_OP("not_this_one")
REGISTER_USER_OP("scaled_forward").Input("a").Input("b").Output("y")
  .Attr<std::string>("device_sub_tag", "py")
  .SetTensorDescInferFn([](user_op::InferContext *ctx) -> Maybe<void> { return Ok(); });
REGISTER_USER_OP("scaled_backward").Input("a").Input("b").Input("dy").Output("da").Output("db");
REGISTER_USER_OP_GRAD("scaled_forward")
  .SetBackwardOpConfGenFn([](user_op::BackwardOpConfContext* ctx) {
    ctx->DefineOp(name, [&ctx](user_op::BackwardOpBuilder& builder) {
      return builder.OpTypeName("scaled_backward")
        .InputBind("a", ctx->FwOp().input("a", 0))
        .InputBind("b", ctx->FwOp().input("b", 0))
        .InputBind("dy", ctx->FwOp().output_grad("y", 0))
        .Output("da").Output("db").Build();
    });
    ctx->FwOp().InputGradBind(user_op::OpArg("a", 0), [&]() -> const std::string& {
      return ctx->GetOp(name).output("da", 0); });
    ctx->FwOp().InputGradBind(user_op::OpArg("b", 0), [&]() -> const std::string& {
      return ctx->GetOp(name).output("db", 0); });
  });
"""
KERNEL = """
def forward(args):
    a, b = args
    return a.sum(axis=1) * b * 2.0

def backward(args):
    a, b, dy = args
    return (dy * b * 2.0)[:, None] + 0 * a, dy * a.sum(axis=1) * 2.0
"""
API = """
import oneflow as flow

def scaled(a, b):
    op = flow.user_op_builder("s").Op("scaled_forward").Input("a", [a]).Input("b", [b])
    return op.Output("y").Build().InferAndTryRun().SoleOutputBlob()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    flow.clear_default_session()
    (tmp_path / "scaled").mkdir()
    for name, text in (("cpp_def.cpp", DECLARED), ("py_kernel.py", KERNEL), ("py_api.py", API)):
        (tmp_path / "scaled" / f"scaled_{name}").write_text(text)
    yield tmp_path
    known.clear()
    flow.clear_default_session()


def test_forward_and_backward(folder: Path) -> None:
    module = flow.experimental.custom_op_module("scaled", str(folder))
    module.py_api().cpp_def().py_kernel().build_load()
    assert set(known) == {"scaled_forward", "scaled_backward"}

    @flow.global_function(type="train")
    def job(x: Numpy.Placeholder((3, 2))) -> Numpy:
        a = flow.get_variable("a", (3, 2), initializer=flow.ones_initializer())
        b = flow.get_variable("b", (3,), initializer=flow.ones_initializer())
        y = module.api.scaled(a * x, b)
        assert y.shape == (3,)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [3.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(y)
        return y

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert np.allclose(job(x), 2 * x.sum(axis=1))
    found = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    assert np.allclose(found["a"], 1 - 2 * x)
    assert np.allclose(found["b"], 1 - 2 * x.sum(axis=1))


def test_missing_parts_of_an_op_are_reported(folder: Path) -> None:
    module = flow.experimental.custom_op_module("scaled", str(folder))
    with pytest.raises(DataError, match="py_kernel"):
        module.cpp_def().build_load()
    with pytest.raises(DataError, match="no file"):
        flow.experimental.custom_op_module("other", str(folder)).py_api()
    (folder / "scaled" / "scaled_py_kernel.py").write_text("")
    with pytest.raises(DataError, match="no function 'forward'"):
        module.py_kernel().build_load()
    (folder / "scaled" / "scaled_cpp_def.cpp").write_text("int main() {}")
    with pytest.raises(DataError, match="no declarations"):
        module.cpp_def().build_load()


def test_builders_check_declared_names(folder: Path) -> None:
    module = flow.experimental.custom_op_module("scaled", str(folder))
    module.py_api().cpp_def().py_kernel().build_load()

    def job(x: Numpy.Placeholder((3, 2))) -> Numpy:
        builder = flow.user_op_builder("s").Op("scaled_forward").Input("c", [x]).Output("y")
        return builder.Build().InferAndTryRun().SoleOutputBlob()

    with pytest.raises(GraphError, match="inputs"):
        flow.global_function()(job)(np.ones((3, 2), np.float32))


def test_kernels_return_one_array_per_output(folder: Path) -> None:
    (folder / "scaled" / "scaled_py_kernel.py").write_text(
        KERNEL.replace("* b * 2.0\n", "* b, a\n")
    )
    module = flow.experimental.custom_op_module("scaled", str(folder))
    module.py_api().cpp_def().py_kernel().build_load()

    @flow.global_function()
    def job(x: Numpy.Placeholder((3, 2)), b: Numpy.Placeholder((3,))) -> Numpy:
        return module.api.scaled(x, b)

    with pytest.raises(FlowError, match="2 arrays"):
        job(np.ones((3, 2), np.float32), np.ones(3, np.float32))
