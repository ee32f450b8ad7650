"""Batch normalization by cuDNN: the pass, moving statistics, and training against the CPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit, core_registry, simulated_registry
from cuda_simulator import host_compiler

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import verify

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
BATCH = 4


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


class TestKernels(CudaKit):
    """Parameters have the type of the input, so that some cases are float32 only."""

    ops = ("cudnn_norm", "cudnn_norm_grad")
    dtypes = ("float32",)
    preloaded = False


def net(device: str = "gpu", amp: bool = False, form: str = "NCHW", width: int = 8, **wishes: Any):  # type: ignore[no-untyped-def]
    """Build a residual block with three normalizations, and one used for inference."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(amp)
    for name, value in wishes.items():
        getattr(config, name)(value)
    shape = (BATCH, 3, 6, 6) if form == "NCHW" else (BATCH, 6, 6, 3)
    axis = 1 if form == "NCHW" else 3

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            start = flow.random_uniform_initializer(-0.3, 0.3)

            def conv(name: str, t: Any) -> Any:
                return flow.layers.conv2d(
                    t, width, 3, padding="SAME", data_format=form, use_bias=False,
                    kernel_initializer=start, name=name,
                )  # fmt: skip

            def norm(name: str, t: Any, training: bool = True) -> Any:
                return flow.layers.batch_normalization(
                    t, axis=axis, momentum=0.7, training=training, name=name
                )

            h = flow.nn.relu(norm("n1", conv("c1", x)))
            side = norm("n3", conv("c3", h))
            h = flow.nn.relu(norm("n2", conv("c2", h)) + flow.math.sigmoid(side))
            h = norm("n4", h, training=False)
            loss = flow.math.reduce_mean(flow.math.square(h - 0.5))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


def counts(job: Any) -> dict[str, int]:
    graph = job.compile().graph
    verify(graph)
    found: dict[str, int] = {}
    for op in graph.ops.values():
        if "norm" in op.type:
            more = "add" if len(op.inputs) > 5 else ""
            name = " ".join(filter(None, (op.type, more, str(op.attrs.get("activation", "")))))
            found[name] = found.get(name, 0) + 1
    return found


REST = {"normalization": 1, "normalization_grad": 1, "cudnn_norm_grad": 3}
JOINED = {"cudnn_norm relu": 1, "cudnn_norm": 1, "cudnn_norm add relu": 1}


def fresh() -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize("form", ["NCHW", "NHWC"])
def test_normalizations_are_joined(form: str, amp: bool) -> None:
    fresh()
    assert counts(net(form=form, amp=amp)) == REST | JOINED


def test_sums_are_optional() -> None:
    fresh()
    found = counts(net(enable_cudnn_fused_normalization_add_relu=False))
    assert found == REST | {"cudnn_norm relu": 1, "cudnn_norm": 2}


def test_ops_rejected_by_the_library_are_kept() -> None:
    """Channel counts that are not multiples of eight."""
    fresh()
    assert counts(net(width=6)) == {"normalization": 4, "normalization_grad": 4}
    fresh()
    assert counts(net(enable_cudnn=False)) == {"normalization": 4, "normalization_grad": 4}


@pytest.mark.slow
@pytest.mark.representative("NHWC", "the others differ in the layout")
@needs_compiler
@pytest.mark.parametrize(("form", "amp"), [("NCHW", False), ("NHWC", True)])
def test_training_matches_the_cpu(form: str, amp: bool) -> None:
    """Compare losses and moving statistics."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, 3, 6, 6) if form == "NCHW" else (BATCH, 6, 6, 3))
    losses, moving = [], []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        job = net(device, amp, form)
        losses.append([job(x.astype(np.float32)).item() for _ in range(4)])
        kept = flow.get_all_variables()
        names = sorted(name for name in kept if "moving" in name)
        assert len(names) == 8
        moving.append([np.asarray(kept[name].numpy()) for name in names])
    tolerance = 2e-2 if amp else 1e-4
    assert losses[0][0] != losses[0][-1]
    np.testing.assert_allclose(*losses, rtol=tolerance)
    for have, want in zip(*moving, strict=True):
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
