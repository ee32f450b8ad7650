"""Names of OneFlow's eager mode, which are out of scope, with the releases that have them."""

from __future__ import annotations

from collections.abc import Iterable
from opcode import opname
from types import FrameType

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


def unknown(
    module: str, name: str, names: Iterable[str], caller: FrameType | None = None
) -> AttributeError | ImportError:
    """Return the error for a name that a module of the facade does not have.

    Args:
        module: the module's name.
        name: the missing name.
        names: the names that the module has.
        caller: the frame that asked for it; ``from module import name`` gets an `ImportError`,
            since Python does not show the text of an `AttributeError` there.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(text, name=name)
    text = elsewhere(module, name) or f"{text}; {nearest(name, names)}".rstrip("; ")
    if caller is not None and _instruction(caller) == "IMPORT_FROM":
        return ImportError(text, name=module)
    return AttributeError(text, name=name)


def _instruction(frame: FrameType) -> str:
    return opname[frame.f_code.co_code[frame.f_lasti]]


def elsewhere(module: str, name: str) -> str:
    """Return a message about a name that other frameworks have; an empty text for other names."""
    counterpart = COUNTERPARTS.get(module, {}).get(name, "")
    eager = eager_name(module, name)
    if not counterpart and not eager:
        return ""
    text = eager or f"module {module!r} has no attribute {name!r}"
    return f"{text}; use {counterpart}" if counterpart else text
