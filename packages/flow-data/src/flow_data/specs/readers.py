"""Op specs of readers and of synthetic batches."""

from __future__ import annotations

from flow_core.authoring.op_rules import specs
from flow_core.authoring.specs import REQUIRED, InferContext, TensorType, tensor_type
from flow_core.base.dtypes import as_dtype, int32, int64, record
from flow_data.specs.rules import RowOp, dense, ragged

SHUFFLE = {
    "random_shuffle": False,
    "shuffle_buffer_size": 1024,
    "shuffle_run": 1,
    "shuffle_after_epoch": False,
    "on_error": "raise",
    "seed": None,
    "region": None,
}


def _count(ctx: InferContext) -> int:
    size = ctx.attrs["batch_size"]
    ctx.check(isinstance(size, int) and size > 0, f"batch_size {size!r}", "a positive integer")
    choices = ("raise", "skip")
    wanted = ctx.attrs.get("on_error", "raise")
    ctx.check(wanted in choices, f"on_error {wanted!r}", '"raise" or "skip"')
    region = ctx.attrs["region"]
    return int(region[0][1] - region[0][0] if region else size)


def _records(ctx: InferContext) -> tuple[TensorType, ...]:
    return (tensor_type((_count(ctx),), record),)


class OFRecordReader(RowOp):
    """Batches of records of OFRecord part files."""

    schema = "OFRecordReader() -> out"
    infer = staticmethod(_records)
    attrs = {
        "data_dir": REQUIRED, "data_part_num": 1, "batch_size": 1, "part_name_prefix": "part-",
        "part_name_suffix_length": -1, **SHUFFLE,
    }  # fmt: skip
    random = True


class RecordReader(RowOp):
    """Batches of the records of files, read by the class that ``format`` names: "module:class"."""

    schema = "record_reader() -> out"
    infer = staticmethod(_records)
    attrs = {"format": REQUIRED, "files": REQUIRED, "batch_size": 1, **SHUFFLE}
    random = True


class COCOReader(RowOp):
    """Images of a COCO data set with their boxes, labels and polygons."""

    schema = (
        "COCOReader() -> image, image_id, image_size, gt_bbox, gt_label, gt_segm, gt_segm_index"
    )
    attrs = {
        "annotation_file": REQUIRED, "image_dir": REQUIRED, "batch_size": REQUIRED,
        "shuffle_after_epoch": True, "random_seed": 0, "group_by_ratio": True,
        "remove_images_without_annotations": True, "stride_partition": True, "shards": 1,
        "on_error": "raise", "region": None,
    }  # fmt: skip
    random = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        n, size, shards = _count(ctx), ctx.attrs["batch_size"], ctx.attrs["shards"]
        fits = isinstance(shards, int) and shards > 0 and size % shards == 0
        ctx.check(fits, f"{shards} shards", f"a divisor of the batch size {size}")
        sizes = dense(n, (2,), int32)
        ids = tensor_type((n,), int64)
        return (ragged(n), ids, sizes, ragged(n), ragged(n), ragged(n), ragged(n))


class MegatronGptMmapDataLoader(RowOp):
    """Batches of windows in the tokens of Megatron-LM's files."""

    schema = "megatron_gpt_mmap_data_loader() -> out"
    attrs = {
        "data_file_prefix": REQUIRED, "seq_length": REQUIRED, "num_samples": REQUIRED,
        "batch_size": REQUIRED, "dtype": "int64", "shuffle": True, "random_seed": None,
        "split_sizes": (1,), "split_index": 0, "region": None,
    }  # fmt: skip
    random = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        attrs, dtype = ctx.attrs, as_dtype(ctx.attrs["dtype"])
        ctx.check(dtype in (int32, int64), f"dtype {dtype}", "int32 or int64")
        for name in ("seq_length", "num_samples"):
            found = attrs[name]
            ctx.check(
                isinstance(found, int) and found > 0, f"{name} {found!r}", "a positive integer"
            )
        sizes, index = attrs["split_sizes"], attrs["split_index"]
        ctx.check(all(n >= 0 for n in sizes) and sum(sizes), f"split_sizes {sizes}", "sizes from 0")
        ctx.check(0 <= index < len(sizes), f"split_index {index}", f"0 to {len(sizes) - 1}")
        return (dense(_count(ctx), (attrs["seq_length"] + 1,), dtype),)


class DecodeRandom(RowOp):
    """A synthetic batch of random numbers, the same in each step."""

    schema = "decode_random() -> out"
    attrs = {
        "shape": REQUIRED, "dtype": REQUIRED, "batch_size": 1,
        "initializer": ("random_uniform", 0.0, 1.0), "region": None,
    }  # fmt: skip
    random = True

    def infer(self, ctx: InferContext) -> tuple[TensorType, ...]:
        return (dense(_count(ctx), ctx.attrs["shape"], as_dtype(ctx.attrs["dtype"])),)


OPS = specs(
    OFRecordReader, RecordReader, COCOReader, MegatronGptMmapDataLoader, DecodeRandom,
)  # fmt: skip
