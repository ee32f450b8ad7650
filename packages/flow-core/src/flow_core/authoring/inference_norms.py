"""The API for passes on batch normalization in inference."""

from flow_core.passes.fold_norms import CONVOLUTIONS as CONVOLUTIONS
from flow_core.passes.fold_norms import FoldNorms as FoldNorms
from flow_core.passes.fold_norms import channel_of as channel_of
from flow_core.passes.inference_norms import NormParts as NormParts
from flow_core.passes.inference_norms import channel_axis as channel_axis
from flow_core.passes.inference_norms import constant_norms as constant_norms
