"""Reports of ``flow data stats`` about stalls of input pipelines, as text and as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from flow_data.loading.stats import LoaderStats

_WIDTH = 40


def text_report(loaders: Sequence[LoaderStats]) -> str:
    """Return the time per stage, the waits and the queue levels of loaders as text."""
    if not loaders:
        return "no loader ran: no step of the program consumed a reader's batch\n"
    return "\n".join(line for stats in loaders for line in _lines(stats))


def _lines(stats: LoaderStats) -> Iterator[str]:
    taken = max(1, stats.batches)
    yield f"loader {stats.name}: {stats.batches} batches, {stats.slots} slots{_workers(stats)}"
    for name, seconds, share in stages(stats):
        bar = "█" * round(share * _WIDTH)
        yield f"  {name:<44.44} {seconds * 1e3 / taken:9.2f} ms/batch {share:6.1%} {bar}"
    later = max(1, stats.batches - 1)
    yield f"  steps waited {stats.waited * 1e3 / later:.2f} ms/batch, {stats.first:.3f} s at first"
    yield f"  steps copied {stats.copied * 1e3 / taken:.2f} ms/batch"
    for level in range(stats.slots + 1):
        count = stats.levels.get(level, 0)
        bar = "█" * round(count / taken * _WIDTH)
        yield f"  {level:3} batches ready: {count:6} times {bar}"
    yield f"  {verdict(stats)}"
    if stats.skipped:
        yield f"  {stats.skipped} corrupt samples skipped:"
        yield from (f"    {message}" for message in stats.messages)
    if stats.broken:
        yield f"  {len(stats.broken)} files truncated at a corrupt frame:"
        yield from (f"    {message}" for message in stats.broken)


def _workers(stats: LoaderStats) -> str:
    """Describe the maximum number of concurrent batches, and what determines it."""
    limits = stats.limits
    if limits is None:
        return ""
    more = f", {limits.waiting} while one waits" if limits.waiting > limits.computing else ""
    return f", {limits.computing} in work while a step computes{more} (by {limits.source})"


def stages(stats: LoaderStats) -> list[tuple[str, float, float]]:
    """Return the name, the seconds and the fraction of the total time of each stage."""
    with stats.lock:
        found = dict(stats.stages)
    total = sum(found.values()) or 1.0
    return [(name, seconds, seconds / total) for name, seconds in found.items()]


def verdict(stats: LoaderStats) -> str:
    """Return a sentence that says whether steps wait for batches, and which stage is slowest.

    >>> fed = LoaderStats("reader", 4, batches=10, levels={4: 10})
    >>> verdict(fed)
    'steps find batches ready: the pipeline is fast enough'
    """
    empty = stats.levels.get(0, 0)
    rows = stages(stats)
    if empty <= 1 + stats.batches // 20 or not rows:
        return "steps find batches ready: the pipeline is fast enough"
    name, _, share = max(rows, key=lambda row: row[1])
    return f"steps wait: no batch was ready {empty} times; most work ({share:.0%}) is in {name}"


def svg_report(loaders: Sequence[LoaderStats]) -> str:
    """Return the report as bars in an SVG picture."""
    rows = [row for stats in loaders for row in _svg_rows(stats)]
    height = 24 * len(rows) + 16
    body = "\n".join(
        f'<text x="{8 + 16 * indent}" y="{24 * i + 25}">{escape(label)}</text>'
        f'<rect x="430" y="{24 * i + 12}" width="{max(0.0, 350 * share):.1f}" height="16" '
        f'fill="{color}"/>'
        for i, (indent, label, share, color) in enumerate(rows)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height}" '
        f'font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'
    )


def _svg_rows(stats: LoaderStats) -> Iterator[tuple[int, str, float, str]]:
    taken = max(1, stats.batches)
    yield 0, f"{stats.name}: {stats.batches} batches. {verdict(stats)}", 0.0, "none"
    for name, seconds, share in stages(stats):
        yield 1, f"{name} {seconds * 1e3 / taken:.2f} ms/batch", share, "#4477aa"
    for level in range(stats.slots + 1):
        count = stats.levels.get(level, 0)
        yield 1, f"{level} batches ready: {count} times", count / taken, "#ccbb44"
