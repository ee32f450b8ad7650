"""Topology files: links and devices as TOML.

A file names the model and its source, the rooflines of device types, and the classes of links from
the smallest groups to the one of all devices; units are seconds, bytes and operations::

    name = "2 machines of 4"
    source = "data sheets"
    kernels = "roofline"
    algorithms = ["direct", "ring", "tree", "hierarchical"]

    [devices.gpu]
    flops = 1.2e14
    bandwidth = 9e11
    held = 1e-13
    launch = 5e-6

    [[links]]
    name = "nvlink"
    joins = "machine"
    latency = 3e-6
    bandwidth = 1.3e11

    [[links]]
    name = "network"
    joins = "all"
    latency = 1e-5
    bandwidth = 1.2e10
    uplink = 1.2e10

With ``kernels = "measured"``, kernels that were measured on this machine cost what was measured,
and the others what the rooflines say.  ``cores`` is the number of cores of a machine, which the
processes on it share; without it, each process has a core of its own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flow_core.base.decoding import Decoder, Mismatch
from flow_core.base.errors import ConfigError
from flow_core.base.formats.regular_files import open_regular
from flow_core.costs.links import ALGORITHMS, Link, LinkModel
from flow_core.costs.model import DEFAULT, CostModel, DeviceModel

KERNELS = ("roofline", "measured")
"""Where the costs of kernels are from."""


@dataclass(frozen=True, slots=True)
class _File:
    """The content of a topology file; the attributes are those of `CostModel` and `LinkModel`."""

    name: str
    source: str
    links: tuple[Link, ...]
    devices: Mapping[str, DeviceModel] = field(default_factory=dict)
    algorithms: tuple[str, ...] = DEFAULT.links.algorithms
    kernels: str = KERNELS[0]
    step: float = DEFAULT.step
    cores: int = DEFAULT.cores


def read_topology(path: Path, kept: Mapping[str, float] | None = None) -> CostModel:
    """Return the cost model that a file describes.

    Args:
        kept: the measured kernels of this machine, for files that ask for them.

    Raises:
        ConfigError: the file does not exist, or is no topology file.
    """
    try:
        with open_regular(path) as file:
            found: _File = Decoder().decode(_File, tomllib.loads(file.read().decode()))
        _check(found)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except Mismatch as error:
        where = error.where.removeprefix(".")
        text = f"{error.found} at {where}" if where else error.found
        raise _unusable(path, text, error.allowed) from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise _unusable(path, str(error)) from error
    measures = found.kernels == "measured"
    measured = dict(kept or {}) if measures else {}
    links = LinkModel(found.links, found.algorithms)
    devices = {**DEFAULT.devices, **found.devices}
    return CostModel(
        found.name, found.source, links, devices, measured, found.step, found.cores, measures
    )


def _check(found: _File) -> None:
    if found.kernels not in KERNELS:
        raise Mismatch(f"{found.kernels!a:.60}", " or ".join(KERNELS)).within(".kernels")
    for word in found.algorithms:
        if word not in ALGORITHMS:
            raise Mismatch(f"{word!a:.60}", ", ".join(ALGORITHMS)).within(".algorithms")
    rows = [(f".devices.{kind}", asdict(d)) for kind, d in found.devices.items()]
    rows += [("", {"step": found.step, "cores": found.cores})]
    rows += [(f".links[{i}]", asdict(link)) for i, link in enumerate(found.links)]
    for where, numbers in rows:
        for name, number in numbers.items():
            least = name in ("flops", "bandwidth")
            if isinstance(number, int | float) and not (number > 0 if least else number >= 0):
                allowed = "a positive number" if least else "a number that is not negative"
                raise Mismatch(str(number), allowed).within(f"{where}.{name}")


def _unusable(path: Path, found: str, allowed: str = "") -> ConfigError:
    return ConfigError.at_caller(
        f"reading the topology file {path}",
        found=found,
        allowed=allowed or "a TOML file with name, source, devices and links",
        hint="flow topology --output FILE writes an example, --probe what it measures",
    )


def topology_text(model: CostModel) -> str:
    """Return the text of a topology file.

    >>> print(topology_text(DEFAULT).splitlines()[0])
    name = "default"
    """
    return "\n".join(_lines(model)) + "\n"


def _lines(model: CostModel) -> Iterator[str]:
    head = {
        "name": model.name, "source": model.source, "kernels": KERNELS[model.measures],
        "algorithms": list(model.links.algorithms), "step": model.step,
    }  # fmt: skip
    head |= {"cores": model.cores} if model.cores else {}
    yield from _pairs(head)
    for kind, device in model.devices.items():
        yield from ("", f"[devices.{json.dumps(kind)}]")
        yield from _pairs(asdict(device))
    for link in model.links.classes:
        yield from ("", "[[links]]")
        yield from _pairs({k: v for k, v in asdict(link).items() if k != "uplink" or v})


def _pairs(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name} = {json.dumps(value, ensure_ascii=True)}"
