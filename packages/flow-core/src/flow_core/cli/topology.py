"""``flow topology``: print the cost model, or probe the links and write a topology file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from flow_core.cli.progress import progress
from flow_core.costs.links import Link
from flow_core.costs.model import CostModel
from flow_core.costs.topology_file import topology_text
from flow_core.frontend.session.session import default_session
from flow_core.observe.tables import Table, micros


def probed(machines: int, measured: bool) -> str | None:
    """Measure the links, and return the text of a topology file; None in ranks other than 0."""
    from flow_core.observe.simulator.probe import probe

    session = default_session()
    with progress() as show:
        found = probe(session, machines, show)
    if session.world is not None and session.world.rank:
        return None
    return topology_text(replace(found, measures=measured))


def write(file: str | None, text: str) -> str:
    """Write a topology file, or return its text if there is no file to write."""
    if file is None:
        return text.rstrip("\n")
    Path(file).write_text(text, encoding="utf-8")
    return f"{file}: pass it as FLOW_TOPOLOGY, or to flow plan --topology"


def current() -> CostModel:
    """Return the cost model of the session."""
    return default_session().costs


def described(measured: bool) -> str:
    """Return the text of a topology file with the cost model of the session."""
    return topology_text(replace(current(), measures=measured))


def tables(model: CostModel) -> Iterator[Table]:
    """Yield the tables of a cost model."""
    yield Table(f"cost model {model}", (), ())
    rows = [
        (kind, *(f"{number:.3g}" for number in asdict(device).values()))
        for kind, device in model.devices.items()
    ]
    columns = ("device", "flop/s", "B/s", "s per byte held", "s per launch")
    cores = f"; {model.cores} cores per machine" if model.cores else ""
    yield Table(f"devices{cores}", columns, tuple(rows))
    yield Table(
        f"links; algorithms of collectives: {', '.join(model.links.algorithms)}",
        ("class", "joins", "latency", "bandwidth", "uplink"),
        tuple(map(_row, model.links.classes)),
    )


def _row(link: Link) -> tuple[str, ...]:
    uplink = _rate(link.uplink) if link.uplink else ""
    return link.name, link.joins, micros(link.latency), _rate(link.bandwidth), uplink


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g} GB/s"
