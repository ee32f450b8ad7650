"""All formats by name."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzing import (
    caches,
    columns,
    foreign,
    models,
    pictures,
    plans,
    records,
    states,
    tables,
    tokens,
    wire,
)
from fuzzing.target import Target

TARGETS: Mapping[str, Target] = {
    target.name: target
    for module in (
        records,
        columns,
        pictures,
        tables,
        tokens,
        plans,
        caches,
        states,
        foreign,
        models,
        wire,
    )
    for target in module.TARGETS
}

READERS: Mapping[str, tuple[str, ...]] = {
    "snapshot": ("meta",),
    "safetensors": ("safetensors",),
    "safetensors_shards": ("safetensors-shards",),
    "torch": ("torch",),
    "parts": ("parts",),
    "ofrecord": ("ofrecord",),
    "tfrecord": ("tfrecord",),
    "onerec": ("onerec",),
    "webdataset": ("webdataset",),
    "arrow": ("arrow",),
    "parquet": ("parquet",),
    "image_folder": ("jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm"),
}
"""The targets of each checkpoint format and record reader that plugins register."""

WITHOUT_TARGET: Mapping[str, str] = {
    "onnx": "onnx parses the file",
}
"""Readers without a target, and why."""
