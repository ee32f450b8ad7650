"""The checks that the kits make: of one kernel, or of one gradient rule, on one sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

import numpy as np

from flow_core.autograd import backward
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype, bfloat16, float16, float32, float64
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.device import Driver
from flow_core.ir.graph import Attrs, AttrValue, GraphBuilder, Op, TensorType, Value, tensor_type
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
from flow_core.sharding.topology import Device, Placement
from flow_core.testing.interpret import evaluate
from flow_core.testing.rig import Rig

Tolerance = tuple[float, float]
"""A relative and an absolute tolerance."""

TOLERANCE: Mapping[DType, Tolerance] = {
    float16: (2e-2, 2e-2),
    bfloat16: (8e-2, 8e-2),
    float32: (2e-5, 2e-5),
    float64: (1e-10, 1e-10),
}
CPU = Placement.parse("cpu", "0:0")
DIRECTIONS = 24
"""Inputs with more elements than this are differentiated along this number of random directions."""


def is_floating(array: Array) -> bool:
    """Return whether an array's element type has gradients.

    >>> is_floating(np.float16([1])), is_floating([1])
    (True, False)
    """
    return as_dtype(np.asarray(array).dtype).is_floating


def cast_sample(sample: Sample, dtype: DType) -> tuple[Array, ...]:
    """Return a sample's inputs; floating point inputs that are not fixed are cast to ``dtype``.

    >>> x = np.array([-1.8, 0.4])
    >>> cast_sample(Sample((x,)), as_dtype("int8")), cast_sample(Sample((x,)), as_dtype("uint8"))
    ((array([-2,  0], dtype=int8),), (array([2, 0], dtype=uint8),))
    """
    rows = enumerate(map(np.asarray, sample.inputs))
    return tuple(x if i in sample.fixed else _cast(x, dtype) for i, x in rows)


def _cast(x: Array, dtype: DType) -> Array:
    """Cast an array; round for integer types, and take magnitudes for unsigned types."""
    if x.dtype.kind != "f" or dtype.is_floating:
        return x.astype(dtype.numpy) if x.dtype.kind == "f" else x
    whole = np.rint(x)
    return (np.abs(whole) if dtype.kind == "u" else whole).astype(dtype.numpy)


def query(spec: OpSpec, arrays: Sequence[Array], attrs: Mapping[str, AttrValue]) -> KernelQuery:
    """Return the kernel query for an op on concrete arrays."""
    full = complete_attrs(spec, attrs, "sample")
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
    outputs = tuple(spec.infer(InferContext("sample", spec.type, types, full)))
    return KernelQuery(spec.type, full, types, outputs)


def run_kernel(
    kernel: KernelSpec, asked: KernelQuery, arrays: Sequence[Array], *, seed: int = 0, step: int = 0
) -> tuple[Array, ...]:
    """Bind a kernel to host arrays and poisoned outputs, launch it once, and return the outputs.

    Inputs that the op mutates are changed in place.
    """
    outputs = tuple(_poisoned(t) for t in asked.outputs)
    size = kernel.workspace(asked) if kernel.workspace else 0
    workspace = np.full(size, 0xA5, np.uint8) if kernel.workspace else None
    context = BindContext(asked, tuple(arrays), outputs, workspace, np.array(step, np.int64), seed)
    launches = load(kernel.load)(context)
    with np.errstate(all="ignore"):
        for launch in launches if isinstance(launches, list | tuple) else (launches,):
            launch()
    return outputs


def _poisoned(type_: TensorType) -> Array:
    raw = np.full(type_.nbytes, 0xA5, np.uint8)
    return raw.view(type_.dtype.numpy).reshape(type_.shape)


def as_tuple(results: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    """Convert the result of a reference to a tuple of outputs."""
    return results if isinstance(results, tuple) else (results,)


def overwritten(spec: OpSpec, asked: KernelQuery) -> tuple[int, ...]:
    """Return the indices of those given inputs that an op overwrites."""
    return tuple(i for i in spec.overwrites(asked.attrs) if i < len(asked.inputs))


def written(spec: OpSpec, asked: KernelQuery) -> tuple[TensorType, ...]:
    """Return the types of an op's results: the outputs, then the overwritten inputs."""
    return (*asked.outputs, *(asked.inputs[i] for i in overwritten(spec, asked)))


def evaluate_op(spec: OpSpec, asked: KernelQuery, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Return the outputs and the overwritten inputs as the reference computes them.

    The reference runs on the given arrays, without a cast to float64.
    """
    assert spec.reference is not None, (
        f"{spec.type} has no reference to compare with: set `OpSpec.reference`"
    )
    with np.errstate(all="ignore"):
        found = as_tuple(spec.reference(*map(_read_only, arrays), **asked.attrs))
    count, given = len(asked.outputs), [i for i in spec.mutates if i < len(arrays)]
    assert len(found) == count + len(given), (
        f"{spec.type}: the reference returns {len(found)} arrays instead of {count} outputs and "
        f"the new values of {len(given)} mutated inputs"
    )
    new = dict(zip(given, found[count:], strict=True))
    return (*found[:count], *(new[i] for i in overwritten(spec, asked)))


def reference_results(
    spec: OpSpec, asked: KernelQuery, arrays: Sequence[Array]
) -> tuple[Array, ...]:
    """Return the results of `evaluate_op` in float64, and check their shapes."""
    results = evaluate_op(
        spec, asked, [x.astype(np.float64) if is_floating(x) else x for x in arrays]
    )
    for want, type_ in zip(results, written(spec, asked), strict=True):
        assert np.shape(want) == type_.shape, (
            f"{spec.type}: the reference returns shape {np.shape(want)} for {type_}"
        )
    return results


def _read_only(array: Array) -> Array:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def assert_close(name: str, dtype: DType, want: Array, have: Array, tolerance: Tolerance) -> None:
    """Assert that two arrays are equal, for floating types within a tolerance.

    NaN and infinities must be at the same positions.
    """
    if not dtype.is_floating:
        np.testing.assert_array_equal(have, want, err_msg=name)
        return
    wide = np.asarray(have).astype(np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(*wide, *tolerance, err_msg=name)


def check_kernel(
    spec: OpSpec,
    kernel: KernelSpec,
    sample: Sample,
    dtype: DType,
    *,
    driver: Driver | None = None,
    tolerance: Callable[[DType], Tolerance] = TOLERANCE.__getitem__,
    repeatable: bool = True,
) -> int:
    """Check that a kernel agrees with the op's reference, and writes only its results.

    The kernel is launched twice, on poisoned outputs and workspace.

    Args:
        spec, kernel: the op and its kernel.
        sample, dtype: the inputs; floating point inputs are cast to ``dtype``.
        driver: the driver of the kernel's device; by default, the driver of host memory.
        tolerance: returns the relative and absolute tolerance for an output's type.
        repeatable: whether the results of both launches must be bitwise equal.

    Returns:
        The number of elements compared.

    Raises:
        AssertionError: the kernel is wrong, or does not accept the sample.
    """
    arrays = cast_sample(sample, dtype)
    asked = query(spec, arrays, sample.attrs)
    assert kernel.accepts is None or kernel.accepts(asked), (
        f"nothing to compare: {kernel.name} does not accept {', '.join(map(str, asked.inputs))}"
    )
    device = driver or NumpyDriver(Device("cpu", 0, 0))
    rig = Rig(device, kernel, asked, mutates=overwritten(spec, asked))
    return check_rig(spec, rig, (arrays,), tolerance, repeatable)


def check_rig(
    spec: OpSpec,
    rig: Rig,
    # Inputs of successive launches; the first launch is repeated at the end.
    given: Sequence[Sequence[Array]],
    # Returns the relative and absolute tolerance for an output's type.
    tolerance: Callable[[DType], Tolerance] = TOLERANCE.__getitem__,
    # Whether the results of both launches on the first inputs must be bitwise equal.
    repeatable: bool = True,
) -> int:
    """Check that the results of a kernel, bound by a `Rig`, agree with the op's reference.

    Returns:
        The number of elements compared.
    """
    types = written(spec, rig.asked)
    assert types, f"{spec.type} has no results to compare: neither outputs nor mutated inputs"
    launches = zip((*given, given[0]), rig.check(given, repeatable), strict=True)
    for arrays, found in launches:
        expected = reference_results(spec, rig.asked, arrays)
        for type_, want, have in zip(types, expected, found, strict=True):
            bounds = tolerance(type_.dtype) if type_.dtype.is_floating else (0.0, 0.0)
            assert_close(f"{spec.type} ({rig.kernel.name})", type_.dtype, want, have, bounds)
    return (len(given) + 1) * sum(t.size for t in types)


def check_gradient(
    specs: Mapping[str, OpSpec],
    spec: OpSpec,
    sample: Sample,
    *,
    epsilon: float = 1e-6,
    constant: Collection[str] = (),
) -> None:
    """Check that a gradient rule agrees with central differences of the reference, in float64.

    Args:
        specs: specs of all ops that the rule may emit.
        spec, sample: the op under test.
        epsilon: half the step of the central differences.
        constant: names of inputs that the rule deliberately gives no gradient, though the op has a
            derivative with respect to them.
    """
    arrays = cast_sample(sample, float64)
    rng = np.random.default_rng(7)
    builder, emitter, values, grads, weights = build_gradient(specs, spec, arrays, sample.attrs)
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    feeds |= {f"seed{v.index}": w for v, w in weights.items()}
    found = evaluate(builder.build(), emitter.specs, feeds)
    slope = _Slope(spec, arrays, complete_attrs(spec, sample.attrs, "sample"), weights, epsilon)
    for index, (value, x) in enumerate(zip(values, arrays, strict=True)):
        if value in grads:
            slope.check(index, found[grads[value]], rng)
        elif is_floating(x) and input_name(spec, index) not in constant:
            slope.check(index, np.zeros_like(x), rng)


def input_name(spec: OpSpec, index: int) -> str:
    """Return the name that an op's schema gives to an input.

    >>> concat = OpSpec("concat", ("axis", "in*"), like_input)
    >>> [input_name(concat, i) for i in range(4)]
    ['axis', 'in', 'in', 'in']
    """
    return spec.inputs[min(index, len(spec.inputs) - 1)].rstrip("?*")


def build_gradient(
    specs: Mapping[str, OpSpec],
    spec: OpSpec,
    arrays: Sequence[Array],
    attrs: Mapping[str, AttrValue],
) -> tuple[GraphBuilder, Emitter, list[Value], dict[Value, Value], dict[Value, Array]]:
    """Build a graph of an op ``op`` on inputs ``x0``, ... and its backward ops on ``seed0``, ...

    Returns:
        The graph, its emitter, the inputs, the gradients of those floating point inputs that have
        one, and random gradients of the floating point outputs.
    """
    builder = GraphBuilder()
    emitter = Emitter(builder, {**specs, _INPUT.type: _INPUT})
    values = [_feed(builder, f"x{i}", x) for i, x in enumerate(arrays)]
    outputs = emitter.emit(spec.type, values, attrs, placement=CPU, name="op")
    rng = np.random.default_rng(7)
    weights = {
        v: rng.uniform(0.5, 1.5, type_.shape).astype(type_.dtype.numpy)
        for v, type_ in zip(outputs, builder.types["op"], strict=True)
        if type_.dtype.is_floating
    }
    seeds = {v: _feed(builder, f"seed{v.index}", w) for v, w in weights.items()}
    wanted = [v for v, x in zip(values, arrays, strict=True) if is_floating(x)]
    return builder, emitter, values, backward(emitter, seeds, wanted), weights


_INPUT = OpSpec(type="kit_input", inputs=(), infer=like_input)


def _feed(builder: GraphBuilder, name: str, array: Array) -> Value:
    op = Op(name, _INPUT.type, (), Attrs(), CPU)
    builder.add(op, (tensor_type(array.shape, as_dtype(array.dtype)),))
    return op.output()


class _Slope:
    """Central differences of the weighted sum of an op's outputs."""

    def __init__(
        self,
        spec: OpSpec,
        arrays: Sequence[Array],
        attrs: Mapping[str, AttrValue],
        weights: Mapping[Value, Array],
        epsilon: float,
    ) -> None:
        assert spec.reference is not None, f"{spec.type} has no reference"
        self.reference, self.name = spec.reference, spec.type
        self.arrays, self.attrs, self.weights, self.epsilon = arrays, attrs, weights, epsilon

    def check(self, index: int, grad: Array, rng: np.random.Generator) -> None:
        """Check the elements of an input's gradient, or its projections on random directions."""
        shape = self.arrays[index].shape
        size = prod(shape)
        axes = np.eye(size) if size <= DIRECTIONS else rng.normal(0, 1, (DIRECTIONS, size))
        expected = [self._along(index, axis.reshape(shape)) for axis in axes]
        np.testing.assert_allclose(
            axes @ grad.reshape(-1), expected, 1e-4, 1e-5, err_msg=f"{self.name}, input {index}"
        )

    def _along(self, index: int, direction: Array) -> float:
        step = self.epsilon * direction
        ahead, behind = (self._objective(index, sign * step) for sign in (1, -1))
        return (ahead - behind) / (2 * self.epsilon)

    def _objective(self, index: int, step: Array) -> float:
        changed = [x + step if i == index else x for i, x in enumerate(self.arrays)]
        results = as_tuple(self.reference(*changed, **self.attrs))
        return float(sum((results[v.index] * w).sum() for v, w in self.weights.items()))
