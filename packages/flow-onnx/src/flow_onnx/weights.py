"""Reader of the weights of ONNX models, as a checkpoint format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flow_core.base.errors import CheckpointError
from flow_onnx.reading import UnreadableModel, initializers, read_model


def read(path: Path) -> Mapping[str, Any]:
    """Return the initializers of a model by name.

    Raises `CheckpointError` if the file is not a model.
    """
    try:
        return initializers(read_model(str(path)).graph)
    except UnreadableModel as error:
        found = str(error)
        raise CheckpointError(f"reading {path}", found=found, allowed="an ONNX model") from error
