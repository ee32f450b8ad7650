"""Names of OneFlow's eager mode, which are out of scope, with the releases that have them."""

from __future__ import annotations

from collections.abc import Iterable

from flow_core.api.compat.counterparts import COUNTERPARTS
from flow_core.base.errors import nearest

TOP_LEVEL = frozenset((
    "autograd", "builtin_op", "InitEagerGlobalSession", "load", "model", "Model", "no_grad",
    "optim", "save", "tensor", "Tensor", "to",
))  # fmt: skip
NN = frozenset((
    "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "CoinFlip", "Conv2d", "CropMirrorNormalize",
    "CrossEntropyLoss", "Dropout", "ELU", "Embedding", "Flatten", "GELU", "Hardsigmoid",
    "Hardswish", "Hardtanh", "Identity", "image", "init", "LayerNorm", "LeakyReLU", "Linear",
    "LogSigmoid", "LogSoftmax", "MaxPool2d", "ModuleDict", "ModuleList", "NLLLoss",
    "OFRecordImageDecoder", "OFRecordImageDecoderRandomCrop", "OfrecordRawDecoder",
    "OfrecordReader", "Parameter", "ParameterDict", "ParameterList", "PReLU", "ReLU", "ReLU6",
    "Sequential", "Sigmoid", "Softmax", "Softplus", "Tanh", "Upsample", "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
))  # fmt: skip
EXPERIMENTAL = frozenset((
    "abs", "add", "arange", "arcsin", "arcsinh", "argmax", "asin", "asinh", "cat", "cos",
    "cosh", "div", "eq", "equal", "exp", "gelu", "gt", "log", "lt", "mean", "mul", "neg",
    "negative", "nn", "optim", "pow", "reciprocal", "rsqrt", "sigmoid", "sin", "softmax",
    "sqrt", "square", "std", "sub", "sum", "tanh", "Tensor", "tensor",
    "tensor_buffer_to_list_of_tensors", "tmp", "unsqueeze", "var",
))  # fmt: skip
NAMES = {"oneflow": TOP_LEVEL, "oneflow.nn": NN, "oneflow.experimental": EXPERIMENTAL}


def eager_name(module: str, name: str) -> str:
    """Return a message about a name of the eager mode, or an empty text for other names."""
    if name not in NAMES.get(module, ()):
        return ""
    path = f"{module}.{name}".replace("oneflow", "flow", 1)
    return (
        f"{path} belongs to the eager mode of OneFlow 0.4 and later, which is out of scope here: "
        "programs define job functions with @flow.global_function, as in OneFlow 0.3.4"
    )


def unknown(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module of the facade does not have.

    Args:
        module: the module's name.
        name: the missing name.
        names: the names that the module has.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(text, name=name)
    counterpart = COUNTERPARTS.get(module, {}).get(name, "")
    hint = f"use {counterpart}" if counterpart else nearest(name, names)
    text = f"{eager_name(module, name) or text}; {hint}".rstrip("; ")
    return AttributeError(text, name=name)
