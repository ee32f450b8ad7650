"""Sources of reader ops, which provide the samples of a batch, given the step number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flow_core.authoring.specs import AttrValue, load
from flow_core.base.arrays import Array
from flow_core.base.errors import DataError, FlowError, described
from flow_data.formats import failure
from flow_data.loading.sampler import BatchSampler, Sampler, SamplerOptions
from flow_data.records.ofrecord import OFRecordFiles, part_paths
from flow_data.records.record import Origin, Record
from flow_data.remote import local_files

Attrs = Mapping[str, AttrValue]


class Source(Protocol):
    """The interface to the data of a reader op, shared by all threads of a loader."""

    skip: bool

    def refs(self, step: int) -> list[Any]:
        """Return references to the samples of a step, for `read`."""

    def read(self, ref: Any, row: int, outputs: Sequence[Array]) -> None:
        """Read a sample into a row of the op's outputs."""

    def origin(self, ref: Any) -> Origin:
        """Return the origin of a sample."""

    def broken(self) -> Sequence[str]:
        """Return messages about skipped parts of files."""


class RecordSource:
    """A source of the records of files, in the order of `BatchSampler`."""

    def __init__(self, files: Any, attrs: Attrs, seed: int, rows: int) -> None:
        own = attrs["seed"]
        options = SamplerOptions(
            attrs["shuffle_buffer_size"] if attrs["random_shuffle"] else 0,
            attrs["shuffle_after_epoch"],
            seed if own is None else own,
            attrs["shuffle_run"],
        )
        self.skip = attrs["on_error"] == "skip"
        self._files = files
        self._reader = str(attrs.get("format", "flow_data.records.ofrecord:OFRecordFiles"))
        start = first_row(attrs)
        self._batches = BatchSampler(
            Sampler(files, options), attrs["batch_size"], (start, start + rows)
        )

    def refs(self, step: int) -> list[Any]:
        return self._batches.refs(step)

    def read(self, ref: Any, row: int, outputs: Sequence[Array]) -> None:
        try:
            record: Record = self._files.read(*ref)
        except FlowError:
            raise
        except Exception as error:
            found = failure(
                error, self.origin(ref), self._reader, "readers", described(error), "a record"
            )
            raise found from error
        outputs[0][row] = record

    def origin(self, ref: Any) -> Origin:
        found: Origin = self._files.origin(*ref)
        return found

    def broken(self) -> Sequence[str]:
        """Return messages about corrupt frames."""
        found: Sequence[str] = self._files.broken
        return found


def first_row(attrs: Attrs) -> int:
    """Return the first row of the logical batch that an op reads."""
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
    opened = load(attrs["format"])
    try:
        files = opened(local_files(attrs["files"]), attrs["on_error"] == "skip")
    except FlowError:
        raise
    except Exception as error:
        attempted = f"opening {len(attrs['files'])} files by {attrs['format']!r}"
        raise DataError(attempted, found=described(error)) from error
    return RecordSource(files, attrs, seed, rows)


def _coco(attrs: Attrs, seed: int, rows: int) -> Source:
    from flow_data.loading.coco import CocoSource

    return CocoSource(attrs, rows)


def _tokens(attrs: Attrs, seed: int, rows: int) -> Source:
    from flow_data.loading.tokens import TokenSource

    return TokenSource(attrs, seed, rows)


_KINDS = {
    "OFRecordReader": _ofrecord,
    "record_reader": _other,
    "COCOReader": _coco,
    "megatron_gpt_mmap_data_loader": _tokens,
}

READERS = frozenset(_KINDS)
"""The types of reader ops."""


def open_source(op_type: str, attrs: Attrs, seed: int, rows: int) -> Source:
    """Open the source of a reader op.

    Args:
        op_type: one of `READERS`.
        rows: number of samples that the op reads per batch.
    """
    return _KINDS[op_type](attrs, seed, rows)
