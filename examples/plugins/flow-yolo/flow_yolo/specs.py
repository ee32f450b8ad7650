"""The op specs: types, SBP rules, gradients and samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flow_core.authoring.op_rules import split_all_axes, with_nondecreasing
from flow_core.authoring.specs import (
    REQUIRED,
    InferContext,
    LocalContext,
    OpSpec,
    S,
    Sample,
    SbpContext,
    Signature,
    Signatures,
    TensorType,
    tensor_type,
)
from flow_core.base.dtypes import float32, int8, int32
from flow_yolo import references

FLOATS = ("float32", "float64")
LAYER = dict.fromkeys(("image_height", "image_width", "layer_height", "layer_width"), REQUIRED)
SMALL = {"image_height": 48, "image_width": 32, "layer_height": 3, "layer_width": 2}
ANCHORS = (8, 12, 20, 9, 30, 40)


def split_images(ctx: SbpContext) -> Signatures:
    """Split the images of all inputs and outputs."""
    return (Signature((S(0),) * len(ctx.inputs), (S(0),) * len(ctx.outputs)),)


def first_floats(ctx: InferContext) -> TensorType:
    """Return the type of the first input, which must be float32 or float64."""
    x = ctx.inputs[0]
    ctx.check(x.dtype.name in FLOATS, f"input of type {x}", "float32 or float64")
    return x


def shaped(ctx: InferContext, index: int, dtype: Any, *shapes: tuple[int, ...]) -> None:
    """Require an input of an element type and of one of some shapes."""
    x, allowed = ctx.inputs[index], " or ".join(f"{dtype}{list(shape)}" for shape in shapes)
    ctx.check(x.dtype is dtype and tuple(x.shape) in shapes, f"input {index} of type {x}", allowed)


def cells(ctx: InferContext, boxes: TensorType, per_cell: int) -> tuple[int, int]:
    """Return the numbers of images and boxes, which must be those of the layer."""
    own = ctx.attrs["layer_height"] * ctx.attrs["layer_width"] * per_cell
    fits = len(boxes.shape) == 3 and boxes.shape[1:] == (own, 4)
    ctx.check(fits, f"boxes {boxes}", f"[images, {own}, 4]: {per_cell} boxes per cell of the layer")
    return boxes.shape[0], own


# --------------------------------------------------------------------------------------- logistic


def logistic_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Keep the type."""
    return (first_floats(ctx),)


def logistic_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield numbers of both signs."""
    for shape in ((7,), (3, 5), (2, 0)):
        yield Sample((rng.uniform(-9, 9, shape),), {}, gradient=False)


# --------------------------------------------------------------------------------------- box_diff


def box_diff_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return the differences, the indices of boxes with and without an object, and statistics."""
    bbox, truth, *_ = ctx.inputs
    anchors, mask = ctx.attrs["anchor_boxes"], ctx.attrs["box_mask"]
    first_floats(ctx)
    fits = len(anchors) % 2 == 0 and all(0 <= k < len(anchors) // 2 for k in mask) and mask
    ctx.check(fits, f"box_mask {mask} of anchors {anchors}", "numbers of pairs of the anchors")
    n, own = cells(ctx, bbox, len(mask))
    most = truth.shape[1] if len(truth.shape) == 3 else 0
    shaped(ctx, 1, bbox.dtype, (n, most, 4))
    shaped(ctx, 2, int32, (n, most), (n, most, 1))
    shaped(ctx, 3, int32, (n,), (n, 1))
    indices = tensor_type((n, own), int32)
    counts, statistics = tensor_type((n, 2), int32), tensor_type((n, 5), float32)
    return (bbox, indices, indices, indices, counts, statistics)


def box_diff_gradient(g: Any) -> tuple[Any, None, None, None]:
    """Take the difference itself as the derivative: that of half its square."""
    return (g.dy * g.y, None, None, None)


def box_diff_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield boxes, of which some are near the true ones."""
    attrs = {**SMALL, "anchor_boxes": ANCHORS, "box_mask": (0, 2)}
    for counts, thresholds in (((2, 5), (0.3, 0.6)), ((0, 9), (0.7, 1.0)), ((5, 5), (0.0, 0.2))):
        bbox = rng.uniform(-0.5, 0.5, (2, 12, 4))
        truth = rng.uniform(0.1, 0.9, (2, 5, 4))
        labels, number = rng.integers(0, 9, (2, 5), np.int32), np.array(counts, np.int32)
        limits = dict(zip(("ignore_thresh", "truth_thresh"), thresholds, strict=True))
        inputs = (bbox, truth, labels, number)
        yield Sample(inputs, {**attrs, **limits}, False, f"{counts} true boxes")


# -------------------------------------------------------------------------------------- prob_loss


def prob_loss_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return the differences of the probabilities of objects and of classes."""
    objects, classes = first_floats(ctx), ctx.inputs[1]
    ctx.check(len(objects.shape) == 3, f"objects {objects}", "[images, boxes, 1]")
    n, boxes = objects.shape[:2]
    shaped(ctx, 0, objects.dtype, (n, boxes, 1))
    shaped(ctx, 1, objects.dtype, (n, boxes, ctx.attrs["num_classes"]))
    for index in (2, 3, 4):
        shaped(ctx, index, int32, (n, boxes))
    shaped(ctx, 5, int32, (n, 2))
    return (objects, classes)


def prob_loss_gradient(g: Any) -> tuple[Any, ...]:
    """Take the differences themselves as the derivatives."""
    found = [None if dy is None else dy * y for dy, y in zip(g.grads, g.outputs, strict=True)]
    return (*found, None, None, None, None)


def prob_loss_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield chosen boxes; a label, and an index, may be out of range."""
    for boxes, classes in ((6, 3), (9, 1)):
        order = np.stack([rng.permutation(boxes) for _ in range(2)]).astype(np.int32)
        label = rng.integers(-1, classes + 1, (2, boxes)).astype(np.int32)
        negative = order[:, ::-1].copy()
        negative[0, 0] = boxes
        valid = np.array([[2, 3], [boxes, 0]], np.int32)
        probabilities = rng.uniform(0, 1, (2, boxes, 1)), rng.uniform(0, 1, (2, boxes, classes))
        inputs = (*probabilities, label, order, negative, valid)
        yield Sample(inputs, {"num_classes": classes}, gradient=False)


# ----------------------------------------------------------------------------------------- detect


def detect_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return boxes, probabilities and the number of both for each image."""
    bbox, probs, original = ctx.inputs
    first_floats(ctx)
    n, own = cells(ctx, bbox, len(ctx.attrs["anchor_boxes"]) // 2)
    most = ctx.attrs["max_out_boxes"]
    ctx.check(0 < most <= own, f"max_out_boxes={most}", f"1 to {own}")
    shaped(ctx, 1, bbox.dtype, (n, own, ctx.attrs["num_classes"] + 1))
    shaped(ctx, 2, int32, (n, 2))
    found = (tensor_type((n, most, x.shape[2]), x.dtype) for x in (bbox, probs))
    return (*found, tensor_type((n,), original.dtype))


def detect_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield images that are higher or wider than the layer's."""
    attrs = {**SMALL, "anchor_boxes": ANCHORS, "num_classes": 2}
    for most, threshold in ((18, 0.4), (3, 0.1), (18, 2.0)):
        inputs = (
            rng.uniform(-0.5, 0.5, (3, 18, 4)),
            rng.uniform(0, 1, (3, 18, 3)),
            np.array([[480, 640], [300, 100], [48, 32]], np.int32),
        )
        yield Sample(inputs, {**attrs, "max_out_boxes": most, "prob_thresh": threshold}, False)


# -------------------------------------------------------------------------------------------- nms


def nms_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return a mark for each box."""
    bbox, batch = first_floats(ctx), ctx.attrs["batch_dims"]
    fits = batch >= 1 and len(bbox.shape) == batch + 2 and bbox.shape[-1] == 4
    ctx.check(fits, f"boxes {bbox}, batch_dims={batch}", "[*batch, boxes, 4]")
    shaped(ctx, 1, bbox.dtype, bbox.shape[:-1])
    return (tensor_type(bbox.shape[:-1], int8),)


def nms_sbp(ctx: SbpContext) -> Signatures:
    """Split the sets of boxes."""
    return tuple(Signature((S(i),) * 2, (S(i),)) for i in range(ctx.attrs["batch_dims"]))


def nms_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield boxes by falling probability; a first one of 0 stands for no box."""
    for shape, keep in (((2, 9), -1), ((2, 3, 7), 2), ((1, 70), 0)):
        boxes = np.concatenate([rng.uniform(0, 1, (*shape, 2)), rng.uniform(0, 1, (*shape, 2))], -1)
        probs = -np.sort(-rng.uniform(0.1, 1, shape))
        probs[(0,) * (len(shape) - 1)] *= 0 if len(shape) == 3 else 1
        attrs = {"iou_threshold": 0.2, "keep_n": keep, "batch_dims": len(shape) - 1}
        yield Sample((boxes, probs), attrs, gradient=False)


# --------------------------------------------------------------------------------------- pictures


def region(ctx: LocalContext) -> dict[str, Any]:
    """Return a device's part of the batch."""
    return {"region": ctx.outputs[0].region}


def _images(ctx: InferContext) -> int:
    part = ctx.attrs["region"]
    ctx.check(ctx.attrs["batch_size"] > 0, f"batch_size {ctx.attrs['batch_size']}", "1 or more")
    return int(part[0][1] - part[0][0] if part else ctx.attrs["batch_size"])


def _planes(ctx: InferContext, n: int) -> TensorType:
    return tensor_type((n, 3, ctx.attrs["image_height"], ctx.attrs["image_width"]), float32)


def train_decoder_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return images, their true boxes (x, y, w, h, class), and the numbers of boxes."""
    n = _images(ctx)
    boxes = tensor_type((n, ctx.attrs["num_boxes"], 5), float32)
    return (_planes(ctx, n), boxes, tensor_type((n, 1), int32))


def predict_decoder_infer(ctx: InferContext) -> tuple[TensorType, ...]:
    """Return images, and the heights and widths of the files."""
    n = _images(ctx)
    ctx.check(ctx.attrs["image_paths"], "no image_paths", "one path or more")
    return (_planes(ctx, n), tensor_type((n, 2), int32))


def _decoder(
    name: str, outputs: tuple[str, ...], infer: Callable[..., Any], **attrs: Any
) -> OpSpec:
    size = {"image_height": REQUIRED, "image_width": REQUIRED, "region": None}
    return OpSpec(
        type=name,
        inputs=(),
        outputs=outputs,
        infer=infer,
        attrs={"batch_size": REQUIRED, **size, **attrs},
        sbp=split_images,
        localize=region,
        random=True,
        host=True,
    )


OPS = (
    OpSpec(
        type="logistic",
        inputs=("in",),
        infer=logistic_infer,
        sbp=with_nondecreasing(split_all_axes),
        gradient=lambda g: (g.dy,),
        reference=references.logistic,
        samples=logistic_samples,
        elementwise=True,
        inplace=(0,),
        doc="The sigmoid of logits whose loss has the difference of probabilities as derivative.",
    ),
    OpSpec(
        type="yolo_box_diff",
        inputs=("bbox", "gt_boxes", "gt_labels", "gt_valid_num"),
        outputs=(
            "bbox_loc_diff", "pos_inds", "pos_cls_label", "neg_inds", "valid_num",
            "statistics_info",
        ),
        infer=box_diff_infer,
        attrs={
            **LAYER,
            **dict.fromkeys(
                ("ignore_thresh", "truth_thresh", "anchor_boxes", "box_mask"), REQUIRED
            ),
        },
        sbp=split_images,
        gradient=box_diff_gradient,
        reference=references.box_diff,
        samples=box_diff_samples,
        doc="Assign the boxes of a layer to true boxes, and return the differences. Statistics are "
        "sums over true boxes: of the overlap, of overlaps above 0.5 and 0.75, and counts.",
    ),
    OpSpec(
        type="yolo_prob_loss",
        inputs=(
            "bbox_objness", "bbox_clsprob", "pos_cls_label", "pos_inds", "neg_inds", "valid_num",
        ),
        outputs=("bbox_objness_out", "bbox_clsprob_out"),
        infer=prob_loss_infer,
        attrs={"num_classes": REQUIRED},
        sbp=split_images,
        gradient=prob_loss_gradient,
        reference=references.prob_loss,
        samples=prob_loss_samples,
        doc="Differences between the probabilities and the true ones.",
    ),
    OpSpec(
        type="yolo_detect",
        inputs=("bbox", "probs", "origin_image_info"),
        outputs=("out_bbox", "out_probs", "valid_num"),
        infer=detect_infer,
        attrs={
            **LAYER,
            **dict.fromkeys(
                ("prob_thresh", "num_classes", "anchor_boxes", "max_out_boxes"), REQUIRED
            ),
        },
        sbp=split_images,
        reference=references.detect,
        samples=detect_samples,
        doc="The boxes with an object, in coordinates of the original image.",
    ),
    OpSpec(
        type="yolo_nms",
        inputs=("bbox", "probs"),
        infer=nms_infer,
        attrs=dict.fromkeys(("iou_threshold", "keep_n", "batch_dims"), REQUIRED),
        sbp=nms_sbp,
        reference=references.nms,
        samples=nms_samples,
        doc="Mark the boxes, given by falling probability, that overlap no better box.",
    ),
    _decoder(
        "yolo_train_decoder",
        ("data", "ground_truth", "gt_valid_num"),
        train_decoder_infer,
        **dict.fromkeys(
            ("classes", "num_boxes", "hue", "jitter", "saturation", "exposure", "image_path_file"),
            REQUIRED,
        ),
    ),
    _decoder(
        "yolo_predict_decoder",
        ("out", "origin_image_info"),
        predict_decoder_infer,
        image_paths=REQUIRED,
    ),
)  # fmt: skip
