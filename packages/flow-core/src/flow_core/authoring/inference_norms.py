"""The API for passes on batch normalization in inference."""

from flow_core.passes.fold_norms import (
    CONVOLUTIONS as CONVOLUTIONS,
    FoldNorms as FoldNorms,
    channel_of as channel_of,
)
from flow_core.passes.inference_norms import (
    NormParts as NormParts,
    channel_axis as channel_axis,
    constant_norms as constant_norms,
)
