"""The ops in numpy; `flow_yolo.specs` describes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_yolo.kernels import layer, no_size


def logistic(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    with np.errstate(all="ignore"):
        return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def overlaps(a: Any, b: Any) -> Any:
    """Return the area that boxes have in common, divided by the area of their union."""
    spans = [
        np.fmin(a[..., k] + a[..., k + 2] / 2, b[..., k] + b[..., k + 2] / 2)
        - np.fmax(a[..., k] - a[..., k + 2] / 2, b[..., k] - b[..., k + 2] / 2)
        for k in (0, 1)
    ]
    both = spans[0] * spans[1]
    found = both / (a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - both)
    return np.where((spans[0] < 0) | (spans[1] < 0), 0, found)


def box_diff(bbox: Any, truth: Any, labels: Any, counts: Any, **attrs: Any) -> tuple[Any, ...]:
    """Compare each image's boxes with its true ones."""
    n, boxes = bbox.shape[:2]
    outputs = (
        np.zeros(bbox.shape, bbox.dtype),
        *(np.full((n, boxes), -1, np.int32) for _ in range(3)),
        np.zeros((n, 2), np.int32),
        np.zeros((n, 5), np.float32),
    )
    for i in range(n):
        count = min(max(int(counts.reshape(n)[i]), 0), truth.shape[1])
        own = truth[i, :count].astype(np.float64), labels[i].reshape(-1)[:count]
        with np.errstate(all="ignore"):
            _image(bbox[i].astype(np.float64), *own, [y[i] for y in outputs], attrs)
    return outputs


def _image(bbox: Any, truth: Any, labels: Any, outputs: Any, attrs: Any) -> None:
    diff, pos, label, neg, valid, statistics = outputs
    high, wide, *image = layer(attrs)
    anchors = np.reshape(attrs["anchor_boxes"], (-1, 2)).astype(np.float64)
    mask = np.array(attrs["box_mask"])
    cells, kinds = np.divmod(np.arange(len(bbox)), len(mask))
    corner = np.stack([cells % wide, cells // wide], 1)
    own = anchors[mask[kinds]]
    layer_size, image_size = np.array([wide, high]), np.array(image[::-1])
    boxes = np.concatenate(
        [(bbox[:, :2] + corner) / layer_size, np.exp(bbox[:, 2:]) * own / image_size], 1
    )
    match = np.full(len(bbox), -1)
    best = np.zeros(len(bbox))
    for j, box in enumerate(truth):
        found = overlaps(boxes, box)
        kind = np.where(found > attrs["truth_thresh"], j, -2)
        kind = np.where(found <= attrs["ignore_thresh"], -1, kind)
        match, best = np.where(found > best, kind, match), np.fmax(best, found)
    plain = np.concatenate([np.zeros_like(anchors), anchors / image_size], 1)
    for j, box in enumerate(truth):
        found = np.nan_to_num(overlaps(np.array([0, 0, *box[2:]]), plain), nan=0)
        column, row = np.floor(box[:2] * layer_size)
        if not (found.max(initial=0) > 0 and 0 <= column < wide and 0 <= row < high):
            continue
        for k in np.flatnonzero(mask == found.argmax()):
            at = (int(row) * wide + int(column)) * len(mask) + k
            match[at] = j
            iou = overlaps(boxes[at], box)
            statistics += np.array([iou, iou > 0.5, iou > 0.75, 1, 1], np.float32)
    for kind, indices, k in ((match >= 0, pos, 0), (match == -1, neg, 1)):
        chosen = np.flatnonzero(kind)
        indices[: len(chosen)], valid[k] = chosen, len(chosen)
    at = np.flatnonzero(match >= 0)
    label[at] = labels[match[at]]
    wanted = truth[match[at]]
    target = np.concatenate(
        [wanted[:, :2] * layer_size - corner[at], np.log(wanted[:, 2:] * image_size / own[at])], 1
    )
    diff[at] = (2 - wanted[:, 2:].prod(1))[:, None] * (bbox[at] - target)


def prob_loss(
    objects: Any, classes: Any, label: Any, pos: Any, neg: Any, valid: Any, **_: Any
) -> tuple[Any, Any]:
    """Subtract the true probabilities, in the boxes that were chosen."""
    objects_out, classes_out = np.zeros_like(objects), np.zeros_like(classes)
    boxes = classes.shape[1]
    for i in range(len(objects)):
        chosen = [
            [k for k in indices[i, : max(int(n), 0)].tolist() if 0 <= k < boxes]
            for indices, n in zip((pos, neg), valid[i], strict=True)
        ]
        objects_out[i, chosen[0]] = objects[i, chosen[0]] - 1
        objects_out[i, chosen[1]] = objects[i, chosen[1]]
        hot = np.arange(classes.shape[2]) == label[i, chosen[0]][:, None]
        classes_out[i, chosen[0]] = classes[i, chosen[0]] - hot.astype(classes.dtype)
    return objects_out, classes_out


def detect(bbox: Any, probs: Any, original: Any, **attrs: Any) -> tuple[Any, Any, Any]:
    """Select the boxes with an object, in coordinates of the original picture."""
    n, most = len(bbox), attrs["max_out_boxes"]
    out_bbox = np.zeros((n, most, 4), bbox.dtype)
    out_probs = np.zeros((n, most, probs.shape[2]), probs.dtype)
    valid = np.zeros(n, original.dtype)
    anchors = np.reshape(attrs["anchor_boxes"], (-1, 2))
    layer_high, layer_wide, image_high, image_wide = layer(attrs)
    for i in range(n):
        height, width = map(int, original[i])
        if height < 1 or width < 1:
            raise no_size()
        high, wide = image_high, image_wide
        if image_wide / width < image_high / height:
            high = height * image_wide // width
        else:
            wide = width * image_high // height
        at = np.flatnonzero(probs[i, :, 0] > attrs["prob_thresh"])[:most]
        valid[i] = len(at)
        with np.errstate(all="ignore"):
            products = probs[i, at].astype(np.float64)
            products[:, 1:] *= products[:, :1]
            products[:, 1:][~(products[:, 1:] > attrs["prob_thresh"])] = 0
            cells, kinds = np.divmod(at, len(anchors))
            x = bbox[i, at].astype(np.float64)
            left, top = (x[:, 0] + cells % layer_wide) / layer_wide, None
            top = (x[:, 1] + cells // layer_wide) / layer_high
            box = np.stack(
                [
                    (left - (image_wide - wide) / 2 / image_wide) / (wide / image_wide),
                    (top - (image_high - high) / 2 / image_high) / (high / image_high),
                    np.exp(x[:, 2]) * anchors[kinds, 0] / np.float64(wide),
                    np.exp(x[:, 3]) * anchors[kinds, 1] / np.float64(high),
                ],
                1,
            )
            out_probs[i, : len(at)], out_bbox[i, : len(at)] = products, box
    return out_bbox, out_probs, valid


def nms(bbox: Any, probs: Any, **attrs: Any) -> Any:
    """Mark boxes from the first on; drop those that overlap a marked one."""
    keep = np.zeros(bbox.shape[:-1], np.int8)
    most = attrs["keep_n"] if attrs["keep_n"] > 0 else bbox.shape[-2]
    for place in np.ndindex(keep.shape[:-1]):
        boxes = bbox[place].astype(np.float64)
        left = np.arange(len(boxes)) if len(boxes) and probs[place][0] != 0 else np.arange(0)
        while len(left) and keep[place].sum(dtype=int) < most:
            first, left = left[0], left[1:]
            keep[place][first] = 1
            with np.errstate(all="ignore"):
                found = overlaps(boxes[first], boxes[left])
            left = left[~(found > attrs["iou_threshold"])]
    return keep
