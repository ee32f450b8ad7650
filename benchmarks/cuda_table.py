"""The table of `cuda_checks.py`: its rows and their comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cuda_order import NETWORKS, PEERS, Row

ACCURACY = "accuracy of lenet_eval.py on the {}"
CLOSE = 1.0
"""Allowed difference of accuracies in percentage points: seeds are equal, last digits are not."""


def line(row: Row, width: int = 44) -> str:
    """Format a row."""
    return f"{row.name:<{width}}  {row.result:<12}  {row.note}".rstrip()


def table(rows: Mapping[str, Row]) -> str:
    """Format all rows and their comparisons."""
    found = (*rows.values(), *summary(rows))
    width = max((len(row.name) for row in found), default=0)
    return "\n".join(line(row, width) for row in found)


def summary(rows: Mapping[str, Row]) -> Iterator[Row]:
    """Yield comparisons of several rows."""
    yield from accuracies(rows)
    yield from comparison(rows)


def accuracies(rows: Mapping[str, Row]) -> Iterator[Row]:
    """Compare LeNet's accuracy on GPU and CPU."""
    found = [rows.get(ACCURACY.format(device)) for device in ("gpu", "cpu")]
    shares = [row.data["percent"] for row in found if row is not None]
    if len(shares) == 2:
        close = abs(shares[0] - shares[1]) <= CLOSE
        note = f"{shares[0]:.2f} %, on CPUs {shares[1]:.2f} %"
        yield Row("LeNet: accuracy as on the CPU", "passed" if close else "FAILED", note)


def comparison(rows: Mapping[str, Row]) -> Iterator[Row]:
    """Compare each network's step with its lower bound and the best peer."""
    rate = {
        k: v for row in rows.values() if row.name.startswith("rate") for k, v in row.data.items()
    }
    for name in NETWORKS:
        own = rows.get(f"{name}: step")
        if own is None or "seconds" not in own.data:
            continue
        mine, times = own.data["seconds"], dict(_times(rows, name))
        words = [f"{peer} {seconds * 1e6:.0f}" for peer, seconds in times.items()]
        result = f"{min(times.values()) / mine:.2f} x" if times else "no peer"
        if rate:
            by_bytes = own.data["bytes"] / rate["bytes"]
            by_work = own.data["operations"] / rate[f"operations {own.data['bits']:.0f}"]
            words.append(f"floor {by_bytes * 1e6:.0f} of bytes, {by_work * 1e6:.0f} of work")
        note = f"us: own {mine * 1e6:.0f}, {', '.join(words)}"
        yield Row(f"{name}: beside the best peer", result, note)


def _times(rows: Mapping[str, Row], name: str) -> Iterator[tuple[str, float]]:
    for peer in PEERS:
        row = rows.get(f"{name}: {peer}")
        if row is not None and "seconds" in row.data:
            yield peer, row.data["seconds"]
