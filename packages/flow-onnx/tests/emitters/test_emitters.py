"""Each op's samples in ONNX Runtime and in the op's reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_cases.models import in_float32, job_of, loaded_results, op_results

from flow_core.base.errors import UnsupportedError
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import Sample
from flow_onnx.emitters import EMITTERS
from flow_onnx.export import converted
from flow_onnx.options import OPSETS, Options

OPS = default_registry().ops
NO_SAMPLES = {"literal"}
"""Ops created by passes."""

SINCE = {
    "batch_gather": 12, "dequantize_linear": 13, "dim_scatter_add_like": 16,
    "quantize_linear": 13, "scatter_nd": 16, "scatter_nd_like": 16,
    "tensor_scatter_nd_add": 16, "unsorted_segment_sum": 16,
}  # fmt: skip
"""The first opset that can express an op."""


def table_shape(type_: str, sample: Sample) -> tuple[int, ...]:
    """Return the sizes that bound the indices."""
    arrays, attrs = sample.inputs, sample.attrs
    if type_ == "batch_gather":
        return tuple(arrays[0].shape[arrays[1].ndim - 1 :][:1])
    if type_ == "gather":
        return tuple(arrays[0].shape[attrs["axis"] :][:1])
    if type_ in ("dim_gather", "dim_scatter_add_like"):
        return tuple(arrays[0].shape[attrs["dim"] :][:1])
    if type_ == "unsorted_segment_sum":
        return (attrs["num_segments"],)
    shape = attrs["shape"] if type_ == "scatter_nd" else arrays[0].shape
    return tuple(shape)


INDEX = {
    "gather": 1, "batch_gather": 1, "dim_gather": 1, "gather_nd": 1, "scatter_nd": 0,
    "scatter_nd_like": 1, "tensor_scatter_nd_add": 2, "tensor_scatter_nd_update": 2,
    "dim_scatter_add_like": 2, "unsorted_segment_sum": 1,
}  # fmt: skip
"""The input that holds the indices, by op."""


def in_range(type_: str, sample: Sample) -> Sample:
    """Return the sample with indices in range, as ONNX requires."""
    if type_ not in INDEX:
        return sample
    arrays, position = list(sample.inputs), INDEX[type_]
    index, sizes = arrays[position], table_shape(type_, sample)
    nd = type_.endswith(("_nd", "_nd_like", "_nd_add", "_nd_update"))
    limits = np.array(sizes[: index.shape[-1]] if nd else sizes[0])
    arrays[position] = np.clip(index, 0, limits - 1).astype(index.dtype)
    return replace(sample, inputs=tuple(arrays))


def samples(type_: str) -> Iterator[Sample]:
    for sample in OPS[type_].samples(np.random.default_rng(0)):
        if sample.note != "limits of int64":  # whose sums ONNX Runtime rounds to float64
            yield in_range(type_, sample)


Refusal = Callable[[str, Sample, int], bool]

REFUSED: Mapping[str, Refusal] = {
    "a device's part": lambda _, s, __: any(s.attrs.get(k) for k in ("first", "window", "count")),
    "updates the moving averages": lambda t, s, _: t.startswith("moving") and s.attrs["training"],
    "normalizes by the batch": lambda t, s, _: t == "normalization" and s.attrs["training"],
    "left over of a size": lambda t, s, _: t == "upsample" and s.attrs["height_scale"] == 2.5,
    "no counterpart in ONNX": lambda _, s, __: s.note == "draws" and s.attrs.get("length") != 0,
    "mirrored view": lambda t, s, _: t.endswith("_mirrored"),
    "behind the first axis": lambda t, s, _: t == "unsorted_segment_sum" and s.attrs["axis"] > 0,
    "needs opset": lambda t, s, opset: (
        opset < SINCE.get(t, 0)
        and not (t == "batch_gather" and s.inputs[1].ndim == 1)
        and not (t.endswith("quantize_linear") and s.attrs.get("axis") is None)
    ),
    "without elements": lambda t, s, opset: (
        opset < 14 and t in ("reshape", "layer_norm") and any(0 in a.shape for a in s.inputs)
    ),
    "bfloat16 was added in opset 13": lambda _, s, opset: (
        opset < 13 and s.attrs.get("dtype") == "bfloat16"
    ),
}  # fmt: skip
"""Error texts for samples that cannot be exported."""


def refusal(type_: str, sample: Sample, opset: int) -> str | None:
    return next((text for text, holds in REFUSED.items() if holds(type_, sample, opset)), None)


def expected_of(type_: str, arrays: Sequence[Any], sample: Sample) -> tuple[Any, ...]:
    """The outputs of the op's reference, without the new values of mutated inputs."""
    attrs = {**OPS[type_].attrs, **sample.attrs}
    with np.errstate(all="ignore"):  # references may compute values that they discard
        expected = OPS[type_].reference(*arrays, **attrs)
    results = expected if isinstance(expected, tuple) else (expected,)
    mutated = sum(index < len(arrays) for index in OPS[type_].mutates)
    return results[: len(results) - mutated]


def check(type_: str, sample: Sample, opset: int) -> None:
    arrays = [in_float32(a) for a in sample.inputs]
    text = refusal(type_, sample, opset)
    if text is not None:
        with pytest.raises(UnsupportedError, match=text):
            converted(job_of(type_, arrays, sample.attrs), Options(opset=opset))
        return
    expected = expected_of(type_, arrays, sample)
    if any(array.dtype.name == "bfloat16" for array in expected):
        converted(job_of(type_, arrays, sample.attrs), Options(opset=opset))
        return  # ONNX Runtime does not support their type; the checker has seen the model
    found = op_results(type_, arrays, sample.attrs, opset)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, 1e-4, 1e-5, err_msg=str(sample))


@pytest.mark.parametrize("type_", sorted(set(EMITTERS) - NO_SAMPLES))
def test_samples(type_: str) -> None:
    for sample in samples(type_):
        check(type_, sample, 18)


@pytest.mark.slow
@pytest.mark.representative("-18", "the opset that torch exports")
@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("type_", sorted(set(EMITTERS) - NO_SAMPLES))
def test_samples_loaded_into_a_job(type_: str, opset: int, tmp_path: Path) -> None:
    for number, sample in enumerate(samples(type_)):
        arrays = [in_float32(a) for a in sample.inputs]
        if refusal(type_, sample, opset) is not None or any(a.size == 0 for a in arrays):
            continue  # parameters of jobs have elements
        model, _ = converted(job_of(type_, arrays, sample.attrs), Options(opset=opset))
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(model.SerializeToString())
        expected = expected_of(type_, arrays, sample)
        for a, b in zip(loaded_results(path, arrays), expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a.astype(b.dtype), b, 1e-4, 1e-5, err_msg=str(sample))


@pytest.mark.representative("-(11|23)]", "the oldest and the newest opset")
@pytest.mark.slow
@pytest.mark.parametrize("opset", [n for n in OPSETS if n != 18])
@pytest.mark.parametrize("type_", sorted(set(EMITTERS) - NO_SAMPLES))
def test_samples_in_other_opsets(type_: str, opset: int) -> None:
    for sample in samples(type_):
        check(type_, sample, opset)


@pytest.mark.parametrize("opset", [11, 13, OPSETS[-1]])
@pytest.mark.parametrize(
    "type_",
    ["reduce_sum", "reduce_max", "squeeze", "softmax", "layer_norm", "split", "broadcast_like",
     "broadcast_greater_equal", "clip_by_scalar", "gelu", "hardswish", "tril", "pad",
     "sparse_softmax_cross_entropy", "elementwise_maximum", "upsample"],
)  # fmt: skip
def test_ops_with_another_form_in_other_opsets(type_: str, opset: int) -> None:
    for sample in samples(type_):
        check(type_, sample, opset)


def test_every_emitter_belongs_to_an_op() -> None:
    assert set(EMITTERS) <= set(OPS)
