"""The parts of `cuda_checks.py` in order of importance, and their time limits.

Together, the limits of the parts up to `LAST_SURE` fit into nine minutes.  Most parts need less
time than their limits, and leave the rest to later parts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path += map(str, ROOT.glob("packages/*/src"))  # after installed packages

from flow_cuda import families  # noqa: E402 - found by the line above

NETWORKS = ("mlp", "lenet", "resnet50", "bert_base", "wide_deep_sgd")
PEERS = {"torch eager": "torch", "torch.compile": "torch", "jax jit": "jax"}
"""Peers with which steps are compared, and the package that each peer needs."""

FAMILIES = families.FAMILIES
"""Kernel families whose samples `gpu_first.py` checks against the references."""
WORKERS = 8
"""Number of parts that run concurrently, which is possible because these parts time nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was checked.
        result: "passed", "FAILED", "skipped", "not run", or a number with its unit.
        note: additional information.
        data: numbers, keyed by name.
    """

    name: str
    result: str
    note: str = ""
    data: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """The checks of one process.

    Attributes:
        name: a function of `cuda_parts.py` and its arguments, separated by colons.
        seconds: time limit of the part; with less time left, the part does not start.
        together: consecutive parts with the same value run concurrently, because they time
            nothing.
    """

    name: str
    seconds: float
    together: str = ""


PARTS: tuple[Part, ...] = (
    Part("environment", 15),
    Part("steady", 30),
    Part("rates", 15),
    Part("step:mlp", 20),
    Part("step:lenet", 20),
    *(Part(f"peer:{net}:torch eager", 15) for net in NETWORKS[:2]),
    *(Part(f"peer:{net}:jax jit", 20) for net in NETWORKS[:2]),
    Part("step:resnet50", 60),
    Part("launches:resnet50", 40),
    Part("step:bert_base", 50),
    Part("launches:bert_base", 40),
    *(Part(f"peer:{net}:torch eager", 25) for net in NETWORKS[2:4]),
    *(Part(f"programs:{device}", 40, "checks") for device in ("gpu", "cpu")),
    Part("step:wide_deep_sgd", 20),
    Part("peer:wide_deep_sgd:torch eager", 20),
    *(Part(f"peer:{net}:jax jit", 45) for net in NETWORKS[2:]),
    Part("cudnn", 40),
    Part("nccl", 20),
    Part("tests", 90),
)
LAST_SURE = "programs:cpu"

COMPILED: tuple[Part, ...] = tuple(
    Part(f"peer:{net}:torch.compile", seconds)
    for net, seconds in zip(NETWORKS, (50, 60, 160, 130, 60), strict=True)
)
"""The parts of a second call, because max-autotune takes minutes."""


def chosen(only: tuple[str, ...], compiled: bool) -> tuple[Part, ...]:
    """Return the parts of a call: those with the given prefixes, or else of the first or second."""
    if only:
        return tuple(part for part in (*PARTS, *COMPILED) if part.name.startswith(only))
    return COMPILED if compiled else PARTS
