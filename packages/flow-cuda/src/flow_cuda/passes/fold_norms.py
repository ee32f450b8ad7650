"""Fold batch normalization in inference into the preceding convolution, on GPUs."""

from __future__ import annotations

from flow_core.authoring.inference_norms import FoldNorms
from flow_core.authoring.specs import Graph, Op


def configured() -> FoldNorms:
    """Return the pass that folds norms where weights are not larger than results."""
    return FoldNorms("gpu", _pays, "cuda_fold_norms")


def _pays(graph: Graph, conv: Op) -> bool:
    """Return whether folding saves time.

    It does if the weights are not larger than the result, or if they are cast: the
    multiplication by the scale is then fused with the cast.
    """
    weight, made = graph.type_of(conv.inputs[1]), graph.type_of(conv.output())
    return graph.ops[conv.inputs[1].op].type == "cast" or weight.size <= made.size
