"""Replacement of a checkpoint at a URL, in stores that cannot rename a folder.

A save keeps a journal in the folder ``.NAME.saving`` beside the destination.  Each save has a
token, a number and random digits, and writes in this order:

1. ``TOKEN.list``, the files that the save will write at the destination or remove from it;
2. if a checkpoint is there: a copy of the new one, ``TOKEN``, then the empty marker
   ``TOKEN.ready``.  From then on, the copy is the current checkpoint;
3. the destination: removes the old files, and writes the new ones, ``snapshot_done`` last;
4. removes the markers, the oldest first, and then the rest of the journal.

Readers use the copy of the marker with the largest token, or the destination if there is none.  A
save that ends at any point therefore leaves the old or the new checkpoint, and what it leaves half
written is named by lists: the next save replaces exactly these files.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flow_core.base.errors import CheckpointError
from flow_core.checkpoint.layout import DONE, SUMS
from flow_core.checkpoint.remote_store import Stamp, Store, is_file, is_folder, is_top, size_of
from flow_core.checkpoint.sums import LONGEST, Sums, damaged, parents, parse_sums

_LIST, _READY = ".list", ".ready"
_TOKEN = re.compile(r"(\d{6}-[0-9a-f]{16})(\.list|\.ready|(?:/.*)?)", re.DOTALL)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}".strip("/")


class Journal:
    """The journal beside a URL."""

    def __init__(self, store: Store) -> None:
        name = store.root.rpartition("/")[2]
        self.folder = f"../.{name}.saving"  # its path, relative to the URL
        self._store = store
        try:
            may_exist = store.deletes and not is_top(store.root)
            entries = store.listing(self.folder) if may_exist else {}
        except PermissionError:  # a program that may not list the store can only read
            entries = {}
        # Stamps of its files and folders, by path relative to the journal.
        self.entries = {name: stamp for name, stamp in entries.items() if _TOKEN.fullmatch(name)}
        self._ready = sorted(n.removesuffix(_READY) for n in self.entries if n.endswith(_READY))
        # The path of the current checkpoint, relative to the URL.
        self.current = f"{self.folder}/{self._ready[-1]}" if self._ready else ""

    def contents(self) -> dict[str, Stamp]:
        """Return the stamps of the copy that is the current checkpoint; "" is a single file."""
        token = self._ready[-1]
        parts = {n: s for n, s in self.entries.items() if n == token or n.startswith(f"{token}/")}
        alone = is_file(parts.get(token, ("",)))
        return {n[len(token) + 1 :]: stamp for n, stamp in parts.items() if alone or n != token}

    def unfinished(self, present: Mapping[str, Stamp]) -> set[str]:
        """Return the files of the destination that interrupted saves left there."""
        names = sorted(name for name in self.entries if name.endswith(_LIST))
        lists = [entry for entry in map(self._read, names) if entry is not None]
        if not lists or not (self._ready or _is_partial(lists[-1], present)):
            return set()  # a checkpoint at the destination is intact
        return {name for entry in lists for name in (*entry["sizes"], *entry["old"])}

    def _read(self, name: str) -> dict[str, Any] | None:
        """Read a list; return None if its save was interrupted while writing it."""
        try:
            entry: dict[str, Any] = json.loads(self._store.text(_below(self.folder, name), LONGEST))
            sizes = {str(name): int(size) for name, size in entry["sizes"].items()}
            return {"first": bool(entry["first"]), "sizes": sizes, "old": [*map(str, entry["old"])]}
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def next_token(self) -> str:
        """Return a token that is larger than all in the journal."""
        numbers = [int(match[1][:6]) for name in self.entries if (match := _TOKEN.fullmatch(name))]
        return f"{max(numbers, default=0) + 1:06d}-{secrets.token_hex(8)}"

    def replace(self, local: Mapping[str, Path], old: Mapping[str, Stamp], first: bool) -> None:
        """Write the files of a checkpoint, and remove those of the old one.

        Args:
            local: local files by path relative to the destination; "" is a single file.
            old: the files and folders at the destination that may be removed.
            first: whether no checkpoint is there.
        """
        store, names = self._store, sorted(local, key=_marker_last)
        removed = sorted(name for name, stamp in old.items() if is_file(stamp))
        if not store.deletes:
            self._put_all(names, local, removed)
            return
        token = self.next_token()
        copy = f"{self.folder}/{token}"
        sizes = {name: local[name].stat().st_size for name in names}
        record = {"first": first, "sizes": sizes, "old": removed}
        store.write(copy + _LIST, json.dumps(record).encode())
        if not first:
            for name in names:
                store.put(local[name], _below(copy, name))
            self._check_copy(token, sizes)
            store.write(copy + _READY, b"")
        for name in sorted(removed, key=_marker_last, reverse=True):
            store.remove(name)
        for name in names:
            if first:
                store.put(local[name], name)
            else:
                store.copy(_below(copy, name), name, local[name])
        store.remove_empty((old.keys() | parents(removed)) - {*removed} - parents(names))
        self._clear()

    def _put_all(self, names: list[str], local: Mapping[str, Path], old: list[str]) -> None:
        """Write a first checkpoint into a store that cannot delete files."""
        if old:
            raise CheckpointError(
                f"saving {self._store.shown}",
                found="a checkpoint, in a store whose files cannot be deleted",
                allowed="a URL where nothing exists",
            )
        for name in names:
            self._store.put(local[name], name)

    def _check_copy(self, token: str, sizes: Mapping[str, int]) -> None:
        """Raise `CheckpointError` if another save removed files of the copy."""
        stamps = self._store.listing(self.folder)
        for name, size in sizes.items():
            stamp = stamps.get(_below(token, name))
            if stamp is None or size_of(stamp) not in (None, size):
                raise CheckpointError(
                    f"saving {self._store.shown}",
                    found=f"no complete copy of {name or 'the file'!r}, which was just written",
                    hint="check that no other process saves to this URL",
                )

    def _clear(self) -> None:
        """Remove the markers, and then all other files of the journal."""
        stamps = self._store.listing(self.folder)
        names = {name: stamp for name, stamp in stamps.items() if _TOKEN.fullmatch(name)}
        folders = [name for name, stamp in names.items() if is_folder(stamp)]
        ready = sorted(name for name in names if name.endswith(_READY))
        lists = [name for name in names if name.endswith(_LIST)]
        others = names.keys() - {*folders, *ready, *lists}
        for name in (*ready, *others, *lists):
            self._store.remove(_below(self.folder, name))
        self._store.remove_empty(_below(self.folder, name) for name in (*folders, ""))


def _marker_last(name: str) -> tuple[bool, str]:
    return name == DONE, name


def _is_partial(found: Mapping[str, Any], present: Mapping[str, Stamp]) -> bool:
    """Return whether the destination has only a part of the first checkpoint that a list names."""
    return found["first"] and not all(
        name in present and size_of(present[name]) in (None, size)
        for name, size in found["sizes"].items()
    )


class RemotePlace:
    """A URL as the destination of a save, see `guard.Place`.

    What interrupted saves left half written does not count as existing.

    Attributes:
        journal: the journal beside the URL.
        old: the files and folders at the URL, which a save may remove if the guard allows it.
    """

    def __init__(self, store: Store, open_local: Any) -> None:
        self._store, self._open = store, open_local
        self.journal = Journal(store)
        self._kind = "folder" if is_top(store.root) else store.kind()
        self.old = present = self._present()
        partial = self.journal.unfinished(present)
        left = {name: stamp for name, stamp in present.items() if name not in partial}
        kept = {name for name, stamp in left.items() if not is_folder(stamp)}
        for name in parents(partial) - parents(kept):
            left.pop(name, None)
        self._found = left | (self.journal.contents() if self.journal.current else {})
        if partial and not left:
            self._kind = None
        if "" in self._found:
            self._kind = "file"
        elif self._found:
            self._kind = "folder"

    def _present(self) -> dict[str, Stamp]:
        """Return the files at the URL; only those at the top of a folder without the marker."""
        if self._kind == "file":
            return {"": self._store.stamp()}
        if self._kind != "folder" or self.special():
            return {}
        top = self._store.top()
        if DONE in top or self.journal.entries:
            return self._store.listing()
        return dict.fromkeys(top, ("unknown",))

    @property
    def first(self) -> bool:
        return not self._found

    def kind(self) -> str | None:
        return self._kind

    def special(self) -> str | None:
        return "the root of a bucket or server" if is_top(self._store.root) else None

    def names(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._found})

    def contents(self) -> tuple[dict[str, bool], set[str]]:
        files = {name: is_file(s) for name, s in self._found.items() if not is_folder(s)}
        return files, self._found.keys() - files.keys()

    def sums(self) -> Sums | None:
        if SUMS not in self._found:
            return None
        name = _below(self.journal.current, SUMS)
        sums = parse_sums(self._store.text(name, LONGEST))
        if sums is None:
            raise damaged(f"{self._store.shown}/{SUMS}")
        return sums

    def open(self) -> object:
        return self._open(self._store, self.journal.current)
