"""The folders of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from flow_core.base.errors import ConfigError
from flow_serve.info import find_models


def make(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def found(folder: Path, versions: int = 1) -> list[str]:
    return [f"{s.name}/{s.version} {s.platform}" for s in find_models(folder, versions)]


def test_models_and_versions(tmp_path: Path) -> None:
    make(
        tmp_path, "b/1/saved_model.json", "a/9/model.onnx", "a/10/saved_model.json",
        "a/11/other.txt", "a/012/model.onnx", "a/x/model.onnx", ".c/1/model.onnx", "d/readme.txt",
        "file",
    )  # fmt: skip
    assert found(tmp_path) == ["a/10 flow_saved_model", "b/1 flow_saved_model"]
    assert found(tmp_path, 5)[:2] == ["a/10 flow_saved_model", "a/9 onnx_flow"]


def test_the_folder_of_one_model(tmp_path: Path) -> None:
    folder = make(tmp_path / "digits", "1/saved_model.json", "2/saved_model.json")
    assert found(folder) == ["digits/2 flow_saved_model"]


@pytest.mark.parametrize("name", ["a b", "ä", "-a", "a" * 200, "a:b", "a%2fb"])
def test_names_that_paths_of_requests_lack_are_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"{name}/1/model.onnx")
    with pytest.raises(ConfigError, match="the model name"):
        find_models(tmp_path, 1)


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        find_models(tmp_path, 1)
    with pytest.raises(ConfigError, match="No such file"):
        find_models(tmp_path / "none", 1)
