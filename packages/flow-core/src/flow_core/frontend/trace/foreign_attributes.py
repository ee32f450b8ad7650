"""Attributes of the tensors, models and optimizers of PyTorch and Keras, and what replaces them."""

from __future__ import annotations

from collections.abc import Mapping

_PLACEMENT = 'flow.scope.placement("cpu", "0:0") around the ops'
_SHARED = 'a job of type "predict" with the same layer names'
_VARIABLES = "flow.get_all_variables()"

BLOB: Mapping[str, str] = {
    **{name: f"flow.math.reduce_{name}(blob)" for name in ("sum", "mean", "max", "min", "prod")},
    **{name: f"flow.{name}(blob, ...)" for name in ("reshape", "flatten", "squeeze", "transpose")},
    **{name: f"flow.{name}(blob, ...)" for name in ("cumsum", "norm", "roll", "split", "unbind")},
    **dict.fromkeys(("astype", "cast", "to", "type"), "flow.cast(blob, dtype)"),
    **dict.fromkeys(("cpu", "cuda", "device"), _PLACEMENT),
    **dict.fromkeys(("item", "tolist"), "the result of the job"),
    **dict.fromkeys(("double", "float", "half", "int", "long"), "flow.cast(blob, dtype)"),
    **{name: f"flow.math.{name}(blob)" for name in ("abs", "exp", "log", "sqrt", "argmax")},
    "T": "flow.transpose(blob)",
    "backward": "flow.optimizer.SGD(rate).minimize(loss)",
    "clone": "flow.identity(blob)",
    "detach": "variables=[...] of the optimizer, for what it may change",
    "dim": "len(blob.shape)",
    "expand": "flow.expand(blob, sizes)",
    "grad": "flow.watch_diff(blob, handler)",
    "matmul": "flow.matmul(blob, other)",
    "ndim": "len(blob.shape)",
    "numel": "flow.elem_cnt(blob)",
    "permute": "flow.transpose(blob, axes)",
    "repeat": "flow.concat([blob] * count, axis)",
    **dict.fromkeys(("requires_grad", "requires_grad_"), "trainable=False of the layer"),
    "size": "blob.shape, or flow.elem_cnt(blob) for the number of elements",
    "softmax": "flow.nn.softmax(blob)",
    "unsqueeze": "flow.expand_dims(blob, axis)",
    "view": "flow.reshape(blob, shape)",
}
JOB: Mapping[str, str] = {
    "backward": "minimize(loss) in the job: each call is a step",
    **dict.fromkeys(("cpu", "cuda", "to"), _PLACEMENT),
    **dict.fromkeys(("eval", "evaluate", "predict", "train"), _SHARED),
    **dict.fromkeys(("get_weights", "named_parameters", "parameters"), _VARIABLES),
    **dict.fromkeys(("state_dict", "trainable_variables", "weights"), _VARIABLES),
    **dict.fromkeys(("load_state_dict", "set_weights"), "flow.load_variables(values)"),
    "fit": "flow_fit.fit(job, batches, epochs)",
    "forward": "a call of the job",
    "load_weights": "flow.load_variables(flow.checkpoint.get(path))",
    "summary": "`flow plan script.py`, or job.plan()",
    "zero_grad": "leave it out: each call computes its own gradients",
    **dict.fromkeys(("save", "save_weights"), "flow.checkpoint.save(path)"),
}
OPTIMIZER: Mapping[str, str] = {
    **dict.fromkeys(
        ("apply_gradients", "backward", "compute_gradients", "step"),
        "minimize(loss) in the job: each call is a step",
    ),
    **dict.fromkeys(
        ("load_state_dict", "state_dict"), "flow.checkpoint.save(path), which saves its state, too"
    ),
    "add_param_group": "flow.optimizer.CombinedOptimizer(optimizers)",
    "param_groups": "flow.optimizer.CombinedOptimizer(optimizers)",
    "zero_grad": "leave it out: each call of the job computes its own gradients",
}


def missing_attribute(
    owner: object, described: str, name: str, counterparts: Mapping[str, str]
) -> AttributeError:
    """Return the error about an attribute that an object does not have.

    Args:
        described: what the object is, such as "a blob".
    """
    hint = counterparts.get(name, "")
    if hint and not hint.startswith("leave"):
        hint = f"use {hint}"
    text = f"{described} has no {name!r}; {hint}".rstrip("; ")
    return AttributeError(text, name=name, obj=owner)
