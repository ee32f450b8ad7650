"""Sources: where the samples of a batch come from, by the number of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flow_core.authoring.specs import load
from flow_data.loading.order import Batches, Order, OrderOptions
from flow_data.records.ofrecord import OFRecordFiles, part_paths
from flow_data.records.record import Origin, Record

Attrs = Mapping[str, Any]


class Source(Protocol):
    """What a reader op reads.  All threads of a loader share it."""

    skip: bool

    def refs(self, step: int) -> list[Any]:
        """What the samples of a step are, for `put`."""

    def put(self, ref: Any, row: int, outputs: Sequence[Any]) -> None:
        """Reads a sample into a row of the op's outputs."""

    def origin(self, ref: Any) -> Origin:
        """Where a sample comes from."""

    def broken(self) -> Sequence[str]:
        """Messages about parts of files that were left out."""


class RecordSource:
    """The records of files, in the order of `Batches`."""

    def __init__(self, files: Any, attrs: Attrs, seed: int, rows: int) -> None:
        own = attrs["seed"]
        options = OrderOptions(
            attrs["shuffle_buffer_size"] if attrs["random_shuffle"] else 0,
            attrs["shuffle_after_epoch"],
            seed if own is None else own,
            attrs["shuffle_run"],
        )
        self.skip = attrs["on_error"] == "skip"
        self._files = files
        start = first_row(attrs)
        self._batches = Batches(Order(files, options), attrs["batch_size"], (start, start + rows))

    def refs(self, step: int) -> list[Any]:
        """Records of a step."""
        return self._batches.refs(step)

    def put(self, ref: Any, row: int, outputs: Sequence[Any]) -> None:
        """Reads a record."""
        record: Record = self._files.read(*ref)
        outputs[0][row] = record

    def origin(self, ref: Any) -> Origin:
        """Where a record is."""
        found: Origin = self._files.origin(*ref)
        return found

    def broken(self) -> Sequence[str]:
        """Messages about broken frames."""
        found: Sequence[str] = self._files.broken
        return found


def first_row(attrs: Attrs) -> int:
    """The first row of the logical batch that an op makes."""
    region = attrs["region"]
    return int(region[0][0]) if region else 0


def _ofrecord(attrs: Attrs, seed: int, rows: int) -> Source:
    paths = part_paths(
        attrs["data_dir"],
        attrs["data_part_num"],
        attrs["part_name_prefix"],
        attrs["part_name_suffix_length"],
    )
    files = OFRecordFiles(paths, attrs["on_error"] == "skip")
    return RecordSource(files, attrs, seed, rows)


def _other(attrs: Attrs, seed: int, rows: int) -> Source:
    files = load(attrs["format"])(list(attrs["files"]), attrs["on_error"] == "skip")
    return RecordSource(files, attrs, seed, rows)


def _coco(attrs: Attrs, seed: int, rows: int) -> Source:
    from flow_data.loading.coco import CocoSource

    return CocoSource(attrs, rows)


_KINDS = {"OFRecordReader": _ofrecord, "record_reader": _other, "COCOReader": _coco}

READERS = frozenset(_KINDS)
"""Types of ops that read."""


def open_source(op_type: str, attrs: Attrs, seed: int, rows: int) -> Source:
    """The source of a reader op.

    Args:
        op_type: one of `READERS`.
        attrs: the op's attributes.
        seed: the op's seed.
        rows: how many samples of a batch it reads.
    """
    return _KINDS[op_type](attrs, seed, rows)
