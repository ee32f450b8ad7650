"""The file that describes a saved model: its graphs in text form, and their signatures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flow_core.base.errors import CheckpointError
from flow_core.base.regular_files import read_regular

FILE = "saved_model.json"
FORMAT = 1
LONGEST = 1 << 30
"""Largest size of the file in bytes; it is read as a whole."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of inputs and outputs for callers, with the blobs that they name.

    Attributes:
        inputs: parameter of the job by name of the input.
        outputs: index of the result by name of the output.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A saved predict job.

    Attributes:
        text: its graph, see `flow_core.ir.text`.
        inputs: name of the ``input`` op by parameter of the job.
        signatures: by name.
        default_signature: name of the signature to use if a caller names none; "" for the names of
            the job's parameters.
    """

    text: str
    inputs: Mapping[str, str]
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    default_signature: str = ""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """One version of a saved model.

    Attributes:
        name: name of the model.
        version: its version, which is also the name of its folder.
        checkpoint_dir: the folder of the variables, below that of the version.
        default_graph_name: name of the first job.
        graphs: jobs by name.
    """

    name: str
    version: int
    checkpoint_dir: str
    default_graph_name: str
    graphs: Mapping[str, SavedGraph]

    def write(self, folder: Path) -> None:
        """Write the description into the folder of the version."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        (folder / FILE).write_text(text, encoding="utf-8")


def read_model(folder: Path) -> SavedModel:
    """Read the description in the folder of a version.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = folder / FILE
    try:
        found: Any = json.loads(read_regular(path, LONGEST))
        if found.pop("format") != FORMAT:
            raise ValueError(f"another format than {FORMAT}")
        graphs = {name: _graph(**entry) for name, entry in found.pop("graphs").items()}
        return SavedModel(graphs=graphs, **found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"reading the saved model {path}",
            found=f"{type(error).__name__}: {error}",
            allowed="a folder that flow.saved_model.ModelBuilder wrote",
        ) from None


def _graph(signatures: Mapping[str, Mapping[str, Any]], **entry: Any) -> SavedGraph:
    return SavedGraph(signatures={k: Signature(**v) for k, v in signatures.items()}, **entry)
