"""The registered records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flow_core.authoring.specs import KernelQuery, KernelSpec, OpSpec
from flow_yolo.specs import FLOATS, OPS

FLOW_PLUGIN_API = "1.0"


def _floats(query: KernelQuery) -> bool:
    return query.dtypes[0].name in FLOATS


def flow_register_ops() -> Sequence[OpSpec]:
    """Return the ops."""
    return OPS


def flow_register_kernels() -> Iterator[KernelSpec]:
    """Yield the kernels: loops in C, and decoders in Python."""
    for op in ("logistic", "yolo_box_diff", "yolo_prob_loss", "yolo_detect", "yolo_nms"):
        load = f"flow_yolo.kernels:{op.removeprefix('yolo_')}"
        yield KernelSpec(op, "cpu", load, _floats, name=f"yolo.{op}")
    for op in ("yolo_train_decoder", "yolo_predict_decoder"):
        load = f"flow_yolo.pictures:{op.removeprefix('yolo_')}"
        yield KernelSpec(op, "cpu", load, name=f"yolo.{op}")
