"""The checks behind the kits: one kernel on one sample, one gradient on one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from flow_core.autograd import backward
from flow_core.dtypes import DType, as_dtype, bfloat16, float16, float32, float64
from flow_core.ir import Attrs, GraphBuilder, Op, TensorType, Value, tensor_type
from flow_core.ops.build import Emitter, complete_attrs
from flow_core.ops.rules import like_input
from flow_core.plugins.specs import (
    BindContext,
    InferContext,
    KernelQuery,
    KernelSpec,
    OpSpec,
    Sample,
    load,
)
from flow_core.testing.interpret import evaluate
from flow_core.topology import Placement

TOLERANCE = {
    float16: (2e-2, 2e-2),
    bfloat16: (8e-2, 8e-2),
    float32: (2e-5, 2e-5),
    float64: (1e-10, 1e-10),
}
CPU = Placement.parse("cpu", "0:0")


def cast_sample(sample: Sample, dtype: DType) -> tuple[Any, ...]:
    """A sample's inputs with the floating ones cast to ``dtype``."""
    return tuple(
        np.asarray(x).astype(dtype.numpy) if np.asarray(x).dtype.kind == "f" else np.asarray(x)
        for x in sample.inputs
    )


def query(spec: OpSpec, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> KernelQuery:
    """The kernel query of an op on concrete arrays."""
    full = complete_attrs(spec, attrs, "sample")
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
    outputs = tuple(spec.infer(InferContext("sample", spec.type, types, full)))
    return KernelQuery(spec.type, full, types, outputs)


def run_kernel(
    kernel: KernelSpec, asked: KernelQuery, arrays: Sequence[Any], *, seed: int = 0, step: int = 0
) -> tuple[Any, ...]:
    """Binds a host-memory kernel to poisoned outputs and runs it twice (launches repeat)."""
    outputs = tuple(_poisoned(t) for t in asked.outputs)
    size = kernel.workspace(asked) if kernel.workspace else 0
    workspace = np.full(size, 0xA5, np.uint8) if kernel.workspace else None
    context = BindContext(
        asked, tuple(arrays), outputs, workspace, np.array(step, np.int64), seed
    )
    launches = load(kernel.load)(context)
    with np.errstate(all="ignore"):
        for launch in launches if isinstance(launches, list | tuple) else (launches,):
            launch()
    return outputs


def _poisoned(type_: TensorType) -> Any:
    raw = np.full(type_.nbytes, 0xA5, np.uint8)
    return raw.view(type_.dtype.numpy).reshape(type_.shape)


def check_kernel(spec: OpSpec, kernel: KernelSpec, sample: Sample, dtype: DType) -> None:
    """A kernel agrees with the op's reference, computed in float64."""
    arrays = cast_sample(sample, dtype)
    asked = query(spec, arrays, sample.attrs)
    if kernel.accepts is not None and not kernel.accepts(asked):
        return
    before = [x.copy() for x in arrays]
    found = run_kernel(kernel, asked, arrays)
    for i, (x, copy) in enumerate(zip(arrays, before, strict=True)):
        if i not in spec.mutates:
            np.testing.assert_array_equal(x, copy, err_msg=f"{spec.type} changed input {i}")
    wide = [x.astype(np.float64) if as_dtype(x.dtype).is_floating else x for x in arrays]
    assert spec.reference is not None, f"{spec.type} has no reference"
    with np.errstate(all="ignore"):
        expected = spec.reference(*wide, **asked.attrs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(expected) == len(found)
    for type_, want, have in zip(asked.outputs, expected, found, strict=True):
        assert np.shape(want) == type_.shape, f"{spec.type}: reference gives {np.shape(want)}"
        _assert_close(spec.type, type_.dtype, want, have)


def _assert_close(name: str, dtype: DType, want: Any, have: Any) -> None:
    if not dtype.is_floating:
        np.testing.assert_array_equal(have, want, err_msg=name)
        return
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(
        have.astype(np.float64), np.asarray(want, np.float64), rtol, atol, err_msg=name
    )


def check_gradient(
    specs: Mapping[str, OpSpec], spec: OpSpec, sample: Sample, *, epsilon: float = 1e-6
) -> None:
    """The gradient rule agrees with central differences of the reference, in float64."""
    arrays = cast_sample(sample, float64)
    builder = GraphBuilder()
    emitter = Emitter(builder, {**specs, _INPUT.type: _INPUT})
    values = [_feed(builder, f"x{i}", x) for i, x in enumerate(arrays)]
    outputs = emitter.emit(spec.type, values, sample.attrs, placement=CPU, name="op")
    rng = np.random.default_rng(7)
    weights = {
        v: rng.uniform(0.5, 1.5, builder.type_of(v).shape)
        for v in outputs
        if builder.type_of(v).dtype.is_floating
    }
    seeds = {v: _feed(builder, f"seed{v.index}", w) for v, w in weights.items()}
    wanted = [v for v, x in zip(values, arrays, strict=True) if x.dtype.kind == "f"]
    grads = backward(emitter, seeds, wanted)
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    feeds |= {f"seed{v.index}": w for v, w in weights.items()}
    found = evaluate(builder.build(), emitter.specs, feeds)
    for value, grad in grads.items():
        index = values.index(value)
        expected = _central_difference(spec, arrays, index, sample.attrs, weights, epsilon)
        np.testing.assert_allclose(
            found[grad], expected, 1e-4, 1e-5, err_msg=f"{spec.type}, input {index}"
        )


_INPUT = OpSpec(type="kit_input", inputs=(), infer=like_input)


def _feed(builder: GraphBuilder, name: str, array: Any) -> Value:
    op = Op(name, _INPUT.type, (), Attrs(), CPU)
    builder.add(op, (tensor_type(array.shape, as_dtype(array.dtype)),))
    return op.output()


def _central_difference(
    spec: OpSpec,
    arrays: Sequence[Any],
    index: int,
    attrs: Mapping[str, Any],
    weights: Mapping[Value, Any],
    epsilon: float,
) -> Any:
    full = complete_attrs(spec, attrs, "sample")
    assert spec.reference is not None

    def objective(x: Any) -> float:
        changed = [x if i == index else a for i, a in enumerate(arrays)]
        results = spec.reference(*changed, **full)  # type: ignore[misc]  # checked above
        results = results if isinstance(results, tuple) else (results,)
        return float(sum((results[v.index] * w).sum() for v, w in weights.items()))

    base = arrays[index]
    out = np.zeros(prod(base.shape))
    for i in range(out.size):
        step = np.zeros(out.size)
        step[i] = epsilon
        step = step.reshape(base.shape)
        out[i] = (objective(base + step) - objective(base - step)) / (2 * epsilon)
    return out.reshape(base.shape)
