"""The plugin of flow-data: ops, kernels and the loader pass, without decoder libraries."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from flow_core.authoring.specs import KernelSpec, OpSpec, PassSpec, ReaderSpec

FLOW_PLUGIN_API = "1.0"

FAMILIES: tuple[str, ...] = (
    "specs.ragged", "specs.readers", "specs.decoders", "specs.images", "specs.detection",
    "loading.body",
)  # fmt: skip
"""The modules of `flow_data` that have a table ``OPS``."""

KERNELS: Mapping[str, str] = {
    "tensor_to_tensor_buffer": "ragged:to_buffer",
    "tensor_buffer_to_tensor": "ragged:to_tensor",
    "tensor_buffer_to_tensor_list": "ragged:to_list",
    "tensor_list_split": "ragged:split",
    "tensor_list_to_tensor_buffer": "ragged:forward",
    "gen_tensor_buffer": "ragged:generated",
    "tensor_buffer_to_list_of_tensors": "ragged:to_tensors",
    "OFRecordReader": "readers:read",
    "record_reader": "readers:read",
    "COCOReader": "readers:read",
    "megatron_gpt_mmap_data_loader": "readers:read",
    "decode_random": "readers:random",
    "ofrecord_raw_decoder": "decoders:raw",
    "ofrecord_bytes_decoder": "decoders:bytes_instances",
    "record_decoder": "decoders:decoded",
    "ofrecord_image_decoder": "decoders:image",
    "ofrecord_image_decoder_random_crop": "decoders:image_random_crop",
    "ofrecord_blob_decoder": "decoders:blob",
    "onerec_decoder": "decoders:onerec",
    "image_decode": "images:decode",
    "image_resize_to_fixed": "images:resize_to_fixed",
    "image_resize_keep_aspect_ratio": "images:resize_keep_ratio",
    "image_random_crop": "images:random_crop",
    "crop_mirror_normalize_from_tensorbuffer": "images:crop_mirror_normalize",
    "crop_mirror_normalize_from_uint8": "images:crop_mirror_normalize",
    "image_batch_align": "images:batch_align",
    "image_normalize": "images:normalize",
    "image_flip": "images:flip",
    "object_bbox_flip": "detection:bbox_flip",
    "object_bbox_scale": "detection:bbox_scale",
    "object_segmentation_polygon_flip": "detection:polygon_flip",
    "object_segmentation_polygon_scale": "detection:polygon_scale",
    "object_segmentation_polygon_to_mask": "detection:polygon_to_mask",
}
"""The bind function of each op, as ``module:function`` in `flow_data.kernels`."""

_PASSES = (
    PassSpec(
        "fold_loaders",
        "physical",
        "flow_data.loading.fold:FoldLoaders",
        before=("fuse_elementwise",),
    ),
)


def flow_register_ops() -> Iterator[OpSpec]:
    """Yield the ops of all families."""
    for family in FAMILIES:
        yield from importlib.import_module(f"flow_data.{family}").OPS


def flow_register_kernels() -> Iterator[KernelSpec]:
    """Yield the kernels; a kernel is loaded when a plan uses it."""
    for op, target in KERNELS.items():
        yield KernelSpec(op, "cpu", f"flow_data.kernels.{target}", name=f"data.{op}")
    yield KernelSpec("data_loader", "cpu", "flow_data.loading.loader:bind", name="data.loader")


READERS: tuple[ReaderSpec, ...] = (
    ReaderSpec("ofrecord", "flow_data.records.ofrecord:OFRecordFiles"),
    ReaderSpec("onerec", "flow_data.records.onerec:OneRecFiles"),
    ReaderSpec("tfrecord", "flow_data.records.tfrecord:TFRecordFiles"),
    ReaderSpec("webdataset", "flow_data.records.webdataset:WebDatasetFiles"),
    ReaderSpec("parquet", "flow_data.records.tables:ParquetFiles"),
    ReaderSpec("arrow", "flow_data.records.tables:ArrowFiles"),
    ReaderSpec("image_folder", "flow_data.records.folder:FolderFiles"),
)
"""The file formats: classes with the interface of `flow_data.records.framed.Files`, which are
called with paths and ``skip``."""


def flow_register_readers() -> tuple[ReaderSpec, ...]:
    """Return the file formats."""
    return READERS


def flow_doctor() -> list[str]:
    """Return lines about the libraries that decode and resize images."""
    libraries = importlib.import_module("flow_data.codec").libraries()
    return [f"JPEG: {libraries['jpeg']}", f"resizing: {libraries['resize']}"]


def flow_register_passes() -> tuple[PassSpec, ...]:
    """Return the pass that creates loaders."""
    return _PASSES


def flow_register_commands(cli: Any) -> None:
    """Add the command group ``flow data``."""
    importlib.import_module("flow_data.cli.commands").add_commands(cli)
