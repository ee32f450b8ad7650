"""The API for passes on batch normalization in inference."""

from flow_core.passes.fold_norms import CONVOLUTIONS, FoldNorms, channel_of
from flow_core.passes.inference_norms import NormParts, channel_axis, constant_norms

__all__ = ["CONVOLUTIONS", "FoldNorms", "NormParts", "channel_axis", "channel_of", "constant_norms"]
