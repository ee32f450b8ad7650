"""The readers of ``flow.data``, which produce batches of records for decoders."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from flow_core.authoring.specs import emit
from flow_core.base.dtypes import as_dtype, int64
from flow_core.base.errors import DataError, InferenceError, user_line
from flow_data.formats import find_format
from flow_data.records.folder import image_files
from flow_data.records.ofrecord import part_paths
from flow_data.records.tokens import TokenFile
from flow_data.records.webdataset import expanded

Blob = Any


def ofrecord_reader(
    ofrecord_dir: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Read batches of records from OFRecord files.

    All epochs form one sequence, which the seed determines: batch k starts at sample
    ``k * batch_size``. If there are several devices, each reads its part of every batch.
    Checkpoints include the step counter of a train job, so that a restored job continues at the
    same sample, on any number of devices.

    Args:
        ofrecord_dir: folder of the part files.
        batch_size: number of records per step, over all devices.
        data_part_num: number of part files.
        part_name_prefix: prefix of the file names.
        part_name_suffix_length: digits of the zero-padded number in a file name; -1: no padding.
        random_shuffle: whether to shuffle within a buffer, differently in each epoch.
        shuffle_buffer_size: number of records in the buffer.
        shuffle_after_epoch: whether to read the files in another order in each epoch after the
            first.
        name: name of the op.
        on_error: "raise" to raise an error with file, byte and record number when data is corrupt;
            "skip" to replace a corrupt sample by another sample of the batch, and to omit the rest
            of a file after a corrupt frame. Skipped data is logged and counted (``flow data
            stats``).
        seed: seed of the shuffles; by default derived from the job's seed and the op's name.

    Returns:
        A blob of records, shape (batch_size,) and element type ``flow.record``.

    Raises:
        DataError: the folder does not exist, or a part is missing.
    """
    part_paths(ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length)
    return emit(
        "OFRecordReader",
        data_dir=ofrecord_dir,
        batch_size=batch_size,
        data_part_num=data_part_num,
        part_name_prefix=part_name_prefix,
        part_name_suffix_length=part_name_suffix_length,
        random_shuffle=random_shuffle,
        shuffle_buffer_size=shuffle_buffer_size,
        shuffle_after_epoch=shuffle_after_epoch,
        on_error=on_error,
        seed=seed,
        name=name,
    )


def ofrecord_loader(
    ofrecord_dir: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Call `ofrecord_reader`; deprecated: its ``random_shuffle`` is named ``shuffle`` here."""
    return ofrecord_reader(
        ofrecord_dir,
        batch_size,
        data_part_num,
        part_name_prefix,
        part_name_suffix_length,
        shuffle,
        shuffle_buffer_size,
        name=name,
        on_error=on_error,
        seed=seed,
    )


def _files(files: str | Sequence[str]) -> tuple[str, ...]:
    found = (files,) if isinstance(files, str) else tuple(files)
    if not found:
        raise DataError.at_caller("reading files", found="no file", allowed="one or more files")
    return found


def _tars(files: str | Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(chain.from_iterable(map(expanded, _files(files))))
    except ValueError as error:
        at = user_line(3)
        raise DataError("reading files", at=at, found=str(error), allowed="fewer files") from None


def _record_reader(format_: str, files: Sequence[str], **options: Any) -> Blob:
    return emit("record_reader", format=format_, files=files, **options)


def record_reader(
    format: str,
    files: str | Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Read records from files of a registered format.

    See `ofrecord_reader` for the other arguments.

    Args:
        format: the name of a format that a plugin has registered. flow-data registers "ofrecord",
            "tfrecord", "webdataset", "onerec", "parquet", "arrow" and "image_folder".
        files: the files; with ``flow-data[remote]``, also URLs that fsspec knows.

    Returns:
        A blob of records, shape (batch_size,) and element type ``flow.record``.

    Raises:
        DataError: no plugin registered the format, or ``files`` is empty.
    """
    return _record_reader(
        find_format(format),
        _tars(files) if format == "webdataset" else _files(files),
        batch_size=batch_size,
        random_shuffle=random_shuffle,
        shuffle_buffer_size=shuffle_buffer_size,
        name=name,
        shuffle_after_epoch=shuffle_after_epoch,
        on_error=on_error,
        seed=seed,
    )


def tfrecord_reader(
    files: str | Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Read tf.train.Example records from TFRecord files.

    See `ofrecord_reader` for the other arguments.

    The checksums of lengths and records are verified. Decoders accept the features of an Example as
    they accept the fields of an OFRecord.
    """
    return _record_reader(
        "flow_data.records.tfrecord:TFRecordFiles",
        _files(files),
        batch_size=batch_size,
        random_shuffle=random_shuffle,
        shuffle_buffer_size=shuffle_buffer_size,
        name=name,
        shuffle_after_epoch=shuffle_after_epoch,
        on_error=on_error,
        seed=seed,
    )


def webdataset_reader(
    files: str | Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Read records from WebDataset tar files; see `ofrecord_reader` for the other arguments.

    ``0001.jpg`` and ``0001.cls`` in a tar are the fields ``jpg`` and ``cls`` of one record.

    Args:
        files: the tars or URLs, in which ``{000..012}`` stands for each number of this range.

    Raises:
        DataError: there is no file, or a range stands for more than a million files.
    """
    return _record_reader(
        "flow_data.records.webdataset:WebDatasetFiles",
        _tars(files),
        batch_size=batch_size,
        random_shuffle=random_shuffle,
        shuffle_buffer_size=shuffle_buffer_size,
        name=name,
        shuffle_after_epoch=shuffle_after_epoch,
        on_error=on_error,
        seed=seed,
    )


def onerec_reader(
    files: str | Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_mode: str = "instance",
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    verify_example: bool = True,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Read records from OneRec files for `onerec_decoder`.

    See `ofrecord_reader` for the other arguments.

    Args:
        files: the files.
        shuffle_mode: "instance" to shuffle records; "batch" to shuffle runs of ``batch_size``
            consecutive records, in which case the buffer size counts runs.
        verify_example: whether to parse a record completely when it is read, which detects
            corruption in fields that no op decodes. Checksums are always verified.
    """
    if shuffle_mode not in ("instance", "batch"):
        what = f"shuffle_mode {shuffle_mode!r}"
        raise DataError.at_caller("onerec_reader", found=what, allowed="instance, batch")
    return _record_reader(
        f"flow_data.records.onerec:{'OneRecFiles' if verify_example else 'unverified'}",
        _files(files),
        batch_size=batch_size,
        random_shuffle=random_shuffle,
        shuffle_buffer_size=shuffle_buffer_size,
        name=name,
        shuffle_run=batch_size if shuffle_mode == "batch" else 1,
        shuffle_after_epoch=shuffle_after_epoch,
        on_error=on_error,
        seed=seed,
    )


def image_folder_reader(
    folder: str,
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    name: str | None = None,
    *,
    on_error: str = "raise",
    seed: int | None = None,
) -> Blob:
    """Read images from a folder with one sub-folder per class.

    See `ofrecord_reader` for the other arguments.

    Returns:
        Records with two fields: ``encoded``, the bytes of the file, and ``class/label``, the index
        of the sub-folder in the order of names.

    Raises:
        DataError: the folder is missing, or contains no image.
    """
    image_files(folder)
    return _record_reader(
        "flow_data.records.folder:FolderFiles",
        (folder,),
        batch_size=batch_size,
        random_shuffle=random_shuffle,
        shuffle_buffer_size=shuffle_buffer_size,
        name=name,
        on_error=on_error,
        seed=seed,
    )


def coco_reader(
    annotation_file: str,
    image_dir: str,
    batch_size: int,
    shuffle: bool = True,
    random_seed: int | None = None,
    group_by_aspect_ratio: bool = True,
    stride_partition: bool = True,
    name: str | None = None,
    *,
    shards: int = 1,
    on_error: str = "raise",
) -> tuple[Blob, ...]:
    """Read the images of a COCO data set with their objects.

    Args:
        annotation_file: JSON file of the objects; crowds and images without objects are omitted.
            An object is omitted with its box, label and polygons if its box, clipped to the image,
            is not more than a pixel wide and high. ``iscrowd`` and ``segmentation`` may be absent.
        image_dir: folder of the images; each ``file_name`` is a relative path in this folder.
        batch_size: number of images per step, over all devices.
        shuffle: whether to use another order in each epoch.
        random_seed: seed of the orders.
        group_by_aspect_ratio: whether to put portrait images and other images in separate batches.
        stride_partition: whether each of n shards reads every n-th image; otherwise, shards read
            contiguous ranges of the data set.
        name: name of the op.
        shards: number of shards of the data set, which contribute equally to a batch and form their
            groups separately. The number of shards determines the order of images; the number of
            devices does not, because each device reads its rows of the batch. OneFlow on n devices
            uses n shards.
        on_error: see `ofrecord_reader`.

    Returns:
        The encoded images, their ids (int64 (n,)), their heights and widths (int32 (n, 2)), and for
        each image: the boxes xmin, ymin, xmax, ymax (float32 (objects, 4)), the labels from 1
        (int32 (objects,)), the polygon points (float32 (points, 2)), and for each point the index
        of the point in its polygon, of the polygon in its object, and of the object (int32 (points,
        3)).
    """
    if random_seed is None:
        random_seed = random.randrange(sys.maxsize)
    found: tuple[Blob, ...] = emit(
        "COCOReader",
        annotation_file=annotation_file,
        image_dir=image_dir,
        batch_size=batch_size,
        shuffle_after_epoch=shuffle,
        random_seed=random_seed,
        group_by_ratio=group_by_aspect_ratio,
        stride_partition=stride_partition,
        shards=shards,
        on_error=on_error,
        name=name,
    )
    return found


def megatron_gpt_mmap_data_loader(
    data_file_prefix: str,
    seq_length: int,
    num_samples: int,
    batch_size: int,
    dtype: Any = int64,
    shuffle: bool = True,
    random_seed: int | None = None,
    split_sizes: Sequence[int] | None = None,
    split_index: int | None = None,
    parallel_distribution: Sequence[Any] | None = None,
    start_from_saved_progress: bool = False,
    name: str | None = None,
    *,
    nd_sbp: Sequence[Any] | None = None,
) -> Blob:
    """Read batches of tokens from the files of a data set of Megatron-LM.

    A sample is a window of ``seq_length + 1`` tokens; the next one begins at its last token. The
    sequences are concatenated, and read as often as ``num_samples`` requires. The order is that of
    Megatron-LM's GPT data set for the same seed: OneFlow's shuffles depend on its C++ library.

    Args:
        data_file_prefix: path of the files without ``.bin`` and ``.idx``.
        seq_length: number of tokens of a sample, without the last one.
        num_samples: number of samples of all steps; a later step is an error.
        batch_size: number of samples per step, over all devices.
        dtype: element type of the result, int32 or int64.
        shuffle: whether to shuffle the sequences, and the samples.
        random_seed: seed of the shuffles; by default derived from the job's seed and the op's name.
        split_sizes: relative sizes of the parts of the data set, such as (949, 50, 1).
        split_index: the part to read, from 0.
        parallel_distribution: a distribution per dimension of the placement's hierarchy, such as
            ``["S(0)", "B"]`` or objects of ``flow.distribute``.
        start_from_saved_progress: without effect: a train job that loads a checkpoint continues at
            the step of the checkpoint, as with all readers.
        name: name of the op.
        nd_sbp: the name of ``parallel_distribution`` in later versions of OneFlow.

    Returns:
        A blob of shape (batch_size, seq_length + 1).

    Raises:
        DataError: a file is missing, or does not match the other one; or, in a step, the step
            needs more than ``num_samples`` samples.
    """
    distributions = _given_once(parallel_distribution, nd_sbp)
    TokenFile(data_file_prefix)
    blob = emit(
        "megatron_gpt_mmap_data_loader", name=name,
        data_file_prefix=data_file_prefix, seq_length=seq_length, num_samples=num_samples,
        batch_size=batch_size, dtype=as_dtype(dtype).name,
        shuffle=True if shuffle is None else shuffle, random_seed=random_seed,
        split_sizes=(1,) if split_sizes is None else tuple(split_sizes),
        split_index=0 if split_index is None else split_index,
    )  # fmt: skip
    return blob.with_nd_sbp([_sbp_text(d) for d in distributions])


def _given_once(
    parallel_distribution: Sequence[Any] | None, nd_sbp: Sequence[Any] | None
) -> Sequence[Any]:
    """Return an argument that has two names."""
    if parallel_distribution and nd_sbp:
        raise InferenceError.at_caller(
            "megatron_gpt_mmap_data_loader",
            found=f"parallel_distribution={parallel_distribution!r} and nd_sbp={nd_sbp!r}",
            allowed="one of the two names",
        )
    return parallel_distribution or nd_sbp or ()


def _sbp_text(distribution: Any) -> str:
    """Return the text of a distribution, which may be a text or one of ``flow.distribute``."""
    kind = getattr(distribution, "kind", "")
    if kind == "broadcast":
        return "B"
    return f"S({distribution.axis})" if kind == "split" else distribution


MegatronGPTMMapDataLoader = megatron_gpt_mmap_data_loader


def decode_random(
    shape: Sequence[int],
    dtype: Any,
    batch_size: int = 1,
    initializer: Any = None,
    tick: Blob | None = None,
    name: str | None = None,
) -> Blob:
    """Return a synthetic batch of random numbers, which are the same in each step.

    Args:
        shape: shape of a sample.
        dtype: element type.
        batch_size: number of samples per step.
        initializer: the distribution of the numbers; by default uniform from 0 to 1.
        tick: no effect; accepted for compatibility with OneFlow.
        name: name of the op.
    """
    kind = ("random_uniform", 0.0, 1.0)
    if initializer is not None:
        kind = initializer.to_attr() if hasattr(initializer, "to_attr") else tuple(initializer)
    return emit(
        "decode_random",
        shape=tuple(shape),
        dtype=as_dtype(dtype).name,
        batch_size=batch_size,
        initializer=kind,
        name=name,
    )
