"""Deliberate differences of the numpy kernels from the references for special values."""

from flow_core.ops.system import summary
from flow_core.testing import Deviation

SUMMARIES = tuple(spec.type for spec in summary.OPS)
"""Ops that write files."""
INFINITE = ("inf", "-inf", "mixed")
LABELS = ("integer_max", "integer_min", "mixed")
ZEROS = "computed without branches: a sum, or the larger one, of zeros of both signs"
SPREAD = "products of all weights are added where windows overlap, also those with zeros"
TERMS = "infinities cancel or meet a zero, depending on how terms are grouped"
CANCELING = (
    "-inf", "inf", "-zero", "zero", "-subnormal", "subnormal", "lowest", "largest", "mixed",
)  # fmt: skip
CANCELS = "a mean of squares less the square of a mean cancels"
REFUSED = "labels and indices outside of the classes are an error; the reference takes them"
LENGTHS = "lengths and classes out of range are an error; the reference takes them"
ROUNDED = "a gradient is rounded to 16 bits, of which none may be right where products cancel"
OWN_NAN = "max(x, 0) + slope min(x, 0): a slope that is not finite meets a zero"
DEVIATIONS = (
    *(Deviation(op, ("nan",), SPREAD, INFINITE)
      for op in ("conv_data_grad", "deconv1d", "deconv2d", "deconv3d")),
    *(Deviation(op, ("zero_sign",), ZEROS)
      for op in ("elu", "hardtanh", "leaky_relu", "prelu")),
    *(Deviation(op, ("zero_sign",), ZEROS, everywhere=False)
      for op in (
          "broadcast_maximum", "broadcast_minimum", "l1_l2_regularize_gradient", "relu", "sign",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE)
      for op in (
          "lamb_update", "lars_update", "normalization", "normalization_grad",
          "softmax_cross_entropy", "sparse_softmax_cross_entropy_grad",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE, everywhere=False)
      for op in (
          "indexed_slices_adam_update", "indexed_slices_momentum_update",
          "indexed_slices_sgd_update", "matmul_onto", "reduce_prod_grad",
      )),
    *(Deviation(op, ("nan",), TERMS, ("nan", "-nan", *INFINITE), everywhere=False)
      for op in (
          "summed_adagrad_update", "summed_adam_update", "summed_lion_update",
          "summed_momentum_update", "summed_rmsprop_update", "summed_sgd_update",
      )),
    *(Deviation(op, ("finite", "infinity"), ROUNDED, (), ("float16", "bfloat16"), False)
      for op in (
          "summed_adam_update", "summed_lion_update", "summed_momentum_update",
          "summed_rmsprop_update", "summed_sgd_update",
      )),
    *(Deviation(op, ("refused",), REFUSED, LABELS)
      for op in ("one_hot", "sparse_cross_entropy_grad", "sparse_softmax_cross_entropy_grad")),
    *(Deviation(op, ("refused",), LENGTHS, ("integer_zero", *LABELS))
      for op in ("ctc_loss", "ctc_loss_grad")),
    Deviation("prelu", ("nan",), OWN_NAN, ("nan", "-nan", *INFINITE)),
    Deviation("digamma", ("infinity", "nan"), "the sign at a pole", ("-zero", "lowest", "mixed")),
    Deviation("lgamma", ("nan",), "the reflection of -inf has no angle", ("-inf", "mixed")),
    Deviation(
        "softmax_cross_entropy", ("lost",),
        "logarithms are bounded by the largest numbers: a probability of 0 times -inf is 0",
        ("-inf", "mixed"),
    ),
    *(Deviation(op, ("finite", "infinity", "lost", "nan"), CANCELS, CANCELING, everywhere=False)
      for op in ("centered_rmsprop_update", "summed_centered_rmsprop_update")),
    Deviation("CategoricalOrdinalEncode", ("finite",),
              "a table has only what the op has put there", ("mixed",)),
    Deviation(
        "upsample", ("lost", "nan"), "pixels of weight 0 are left out", ("nan", "-nan", *INFINITE)
    ),
    *(Deviation(op, ("finite",), "integers wrap around, the reference has wider ones",
                ("integer_max", "integer_min", "mixed"), everywhere=False)
      for op in ("reduce_prod_grad", "tril")),
)  # fmt: skip
