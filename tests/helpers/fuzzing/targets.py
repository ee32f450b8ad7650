"""All formats by name."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzing import (
    caches,
    columns,
    foreign,
    kserve,
    models,
    networks,
    pictures,
    plans,
    records,
    states,
    tables,
    tokens,
    wire,
)
from fuzzing.target import Target

GROUPS = {
    "data": (records, columns, pictures, tables, tokens),
    "plans and wire": (plans, caches, wire, kserve),
    "checkpoints": (states, foreign, models),
    "networks": (networks,),
}

TARGETS: Mapping[str, Target] = {
    target.name: target
    for modules in GROUPS.values()
    for module in modules
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
    "onnx": ("onnx-weights", "onnx"),
    "image_folder": ("jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm"),
}
"""The targets of each checkpoint format and record reader that plugins register."""

_CHECKPOINTS = ("meta", "parts", "safetensors", "safetensors-shards", "torch", "onnx-weights")
_RECORDS = ("ofrecord",)
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "checkpoint.get": _CHECKPOINTS,
    "data.batches": ("ofrecord", "arrow", "parquet"),
    "data.coco_reader": ("coco",),
    "data.datasets.ImageFolder": READERS["image_folder"],
    "data.datasets.csv": ("csv-table",),
    "data.datasets.fashion_mnist": ("idx",),
    "data.datasets.image_folder": READERS["image_folder"],
    "data.datasets.mnist": ("idx", "npz"),
    "data.datasets.text": ("text",),
    "data.decode_ofrecord": _RECORDS,
    "data.image_folder_reader": READERS["image_folder"],
    "data.load_mnist": ("npz",),
    "data.ofrecord_image_classification_reader": _RECORDS,
    "data.ofrecord_loader": _RECORDS,
    "data.ofrecord_reader": _RECORDS,
    "data.onerec_reader": ("onerec",),
    "data.read_ofrecords": _RECORDS,
    "data.record_reader": ("ofrecord", "tfrecord", "onerec", "webdataset", "arrow", "parquet"),
    "data.tfrecord_reader": ("tfrecord",),
    "data.webdataset_reader": ("webdataset",),
    "fit": _CHECKPOINTS,
    "load": _CHECKPOINTS,
    "onnx.load": ("onnx",),
    "read_rules": ("rules",),
    "replay": ("recorded-steps",),
    "serving.InferenceSession.load_saved_model": ("saved-model",),
    "serving.InferenceSession.set_checkpoint_path": _CHECKPOINTS,
    "train.CheckPoint.load": _CHECKPOINTS,
    "train.SimpleCheckPointManager": _CHECKPOINTS,
    "weights.load": _CHECKPOINTS,
}
"""The targets of each public function and method that reads a path."""

WITHOUT_TARGET: Mapping[str, str] = {
    "BestCheckpoint": "writes",
    "TensorBoard": "writes",
    "checkpoint.export": "writes",
    "checkpoint.save": "writes",
    "data.OFRecordWriter": "writes",
    "data.datasets.cifar10": "reads the published files alone, after a comparison of their digests",
    "deprecated.delete_worker_of_multi_process": "raises",
    "experimental.custom_op_module": "imports the module, which is a program",
    "onnx.export": "writes",
    "saved_model.ModelBuilder": "writes",
    "summary.Projector.write_projector": "writes",
    "tensorrt.write_int8_calibration": "raises",
    "train.CheckPoint.save": "writes",
    "unittest.register_test_cases": "imports the modules, which are programs",
}
"""The other public functions and methods that take a path, and why they have no target."""
