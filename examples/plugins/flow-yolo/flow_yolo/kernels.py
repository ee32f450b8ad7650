"""Kernels, imported on first use; most bind the arguments of a function in C."""

from __future__ import annotations

from ctypes import c_double, c_int, c_long
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import BindContext
from flow_core.base.errors import DataError
from flow_yolo.native import function, pointer


class Call:
    """A call of a C function, which keeps the arrays that it points to."""

    def __init__(self, name: str, dtype: Any, *arguments: Any, result: Any = None) -> None:
        self._kept = [x for x in arguments if isinstance(x, np.ndarray)]
        pointers = (pointer(x) if isinstance(x, np.ndarray) else x for x in arguments)
        self._call = partial(function(name, dtype, result), *pointers)

    def __call__(self) -> Any:
        """Call the function."""
        return self._call()


def _integers(values: Any, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


def logistic(ctx: BindContext) -> Launch:
    """Return a launch that writes 1 / (1 + exp(-x))."""
    return partial(_logistic, *ctx.inputs, *ctx.outputs)


def _logistic(x: Any, y: Any) -> None:
    np.negative(x, y)
    with np.errstate(over="ignore"):
        np.exp(y, y)
    np.add(y, 1, y)
    np.reciprocal(y, y)


def box_diff(ctx: BindContext) -> Launch:
    """Return a launch that compares predicted boxes with true ones."""
    attrs, (bbox, truth, *_) = ctx.attrs, ctx.inputs
    anchors, mask = _integers(attrs["anchor_boxes"]), _integers(attrs["box_mask"])
    sizes = _integers(
        (*bbox.shape[:2], truth.shape[1], len(anchors) // 2, len(mask), *layer(attrs)), np.int64
    )
    limits = (c_double(attrs["ignore_thresh"]), c_double(attrs["truth_thresh"]))
    match = np.empty(bbox.shape[1], np.int32)
    arrays = (*ctx.inputs, *ctx.outputs, match, anchors, mask, sizes)
    return Call("box_diff", bbox.dtype, *arrays, *limits)


def layer(attrs: Any) -> tuple[int, ...]:
    """Return the heights and widths of the layer and of the image."""
    names = ("layer_height", "layer_width", "image_height", "image_width")
    return tuple(attrs[name] for name in names)


def prob_loss(ctx: BindContext) -> Launch:
    """Return a launch that compares probabilities with the true ones."""
    classes = ctx.inputs[1]
    sizes = _integers(classes.shape, np.int64)
    return Call("prob_loss", classes.dtype, *ctx.inputs, *ctx.outputs, sizes)


def detect(ctx: BindContext) -> Launch:
    """Return a launch that selects the boxes with an object."""
    attrs, (bbox, *_) = ctx.attrs, ctx.inputs
    anchors = _integers(attrs["anchor_boxes"])
    counts = (attrs["num_classes"], attrs["max_out_boxes"], len(anchors) // 2)
    sizes = _integers((*bbox.shape[:2], *counts, *layer(attrs)), np.int64)
    arrays = (*ctx.inputs, *ctx.outputs, anchors, sizes)
    limit = c_double(attrs["prob_thresh"])
    return partial(_detect, Call("detect", bbox.dtype, *arrays, limit, result=c_int))


def _detect(call: Call) -> None:
    if not call():
        raise no_size()


def no_size() -> DataError:
    """Return the error that a picture has no pixels."""
    return DataError("yolo_detect", found="a picture without height or width", allowed="sizes > 0")


def nms(ctx: BindContext) -> Launch:
    """Return a launch that marks the boxes that no better box overlaps."""
    bbox, probs = ctx.inputs
    boxes = bbox.shape[-2]
    most = ctx.attrs["keep_n"] if ctx.attrs["keep_n"] > 0 else boxes
    dropped = np.empty(boxes, np.int8)
    numbers = (c_long(probs.size // max(boxes, 1)), c_long(boxes))
    limits = (c_double(ctx.attrs["iou_threshold"]), c_long(most))
    return Call("nms", bbox.dtype, bbox, probs, *ctx.outputs, dropped, *numbers, *limits)
