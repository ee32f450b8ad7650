"""References and samples of the ops that flow-cuda's passes create, for the kits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flow_core.authoring.layouts import TO_FIRST, TO_LAST
from flow_core.authoring.specs import OpSpec, Sample
from flow_core.plugins.registry import Registry
from flow_cuda.ops import OPS

from . import attention, convolutions, norms, products


def _reordered(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 3, 4, 5), (2, 40, 7, 9), (1, 33, 1, 64), (3, 1, 2, 9)):
        for perm in (TO_LAST, TO_FIRST):
            yield Sample((rng.uniform(-1, 1, shape),), {"perm": perm}, gradient=False)


REFERENCES: Mapping[str, tuple[Callable[..., Any], Callable[..., Iterator[Sample]]]] = {
    "cuda_matmul": (products.matmul, products.product_samples),
    "cuda_matmul_sum": (products.matmul_sum, products.sum_samples),
    "cuda_reorder": (lambda x, perm, **_: np.transpose(x, perm), _reordered),
    "cudnn_conv": (convolutions.conv, convolutions.conv_samples),
    "cudnn_conv_data_grad": (convolutions.data_grad, convolutions.data_grad_samples),
    "cudnn_conv_filter_grad": (convolutions.filter_grad, convolutions.filter_grad_samples),
    "cudnn_norm": (norms.norm, norms.norm_samples),
    "cudnn_norm_grad": (norms.norm_grad, norms.norm_grad_samples),
    "cudnn_attention": (attention.attention, attention.attention_samples),
    "cudnn_attention_grad": (attention.attention_grad, attention.attention_grad_samples),
}
REFERRED: tuple[OpSpec, ...] = tuple(
    replace(spec, reference=REFERENCES[spec.type][0], samples=REFERENCES[spec.type][1])
    for spec in OPS
)
"""The ops with their references and samples."""


def with_references(registry: Registry) -> Registry:
    """A registry whose ops of flow-cuda have references and samples."""
    known = {spec.type: spec for spec in REFERRED if spec.type in registry.ops}
    return replace(registry, ops={**registry.ops, **known})
