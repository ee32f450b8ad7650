"""Write the snapshots: ``nox -s snapshots``; ``-- adr tutorial`` writes those with such paths."""

from __future__ import annotations

import sys

from suite import preloaded

from snapshots import ALL, ROOT, pages


def main(parts: list[str]) -> None:
    """Write the snapshots whose paths contain one of the parts; without parts, all."""
    chosen = [s for s in ALL if not parts or any(part in s.path for part in parts)]
    if not chosen:
        sys.exit(f"no snapshot of {' '.join(parts)}; there are:\n" + "\n".join(s.path for s in ALL))
    with preloaded.Interpreter() as address, pages.sharing(address):
        for snapshot in chosen:
            path = ROOT / snapshot.path
            before = path.read_text()
            after = snapshot.text(before)
            path.write_text(after)
            print(f"{'unchanged' if before == after else 'written  '} {snapshot.path}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
