"""Reader of the weights of ONNX models, as a checkpoint format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from flow_core.base.errors import CheckpointError


def read(path: Path) -> Mapping[str, Any]:
    """Return the initializers of a model by name.

    Raises:
        CheckpointError: the file is not a model.
    """
    try:
        model = onnx.load(str(path))
    except (OSError, ValueError, DecodeError) as error:
        found = str(error)
        raise CheckpointError(f"reading {path}", found=found, allowed="an ONNX model") from error
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
