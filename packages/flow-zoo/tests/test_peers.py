"""Networks of the published sizes, and files, of the installed torchvision and transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REASON = "torch, torchvision and transformers are not installed: nox -s zoo runs these tests"
torch = pytest.importorskip("torch", reason=REASON)
torchvision = pytest.importorskip("torchvision", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

from zoo_cases import CASES, Case, arrays, cases, peers, record  # noqa: E402 - imports torch

import flow_zoo  # noqa: E402
import oneflow as flow  # noqa: E402

RNG = np.random.default_rng(0)
IMAGES = (RNG.normal(size=(1, 3, 224, 224)),)
WORDS = (RNG.integers(0, 30000, (1, 32)).astype(np.int32),)
SEGMENTS = (np.arange(32, dtype=np.int32)[None] // 20, np.ones((1, 32), np.int32))


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()
    torch.manual_seed(0)


def bert(tokens: Any, segments: Any, mask: Any) -> Any:
    features = flow_zoo.bert(tokens, segments=segments, mask=mask)
    return features, flow_zoo.bert_pooled(features), flow_zoo.bert_words(features)


def torch_file(module: Any, folder: Path) -> Path:
    torch.save(module.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


def hugging_face(module: Any, folder: Path) -> Path:
    module.save_pretrained(folder, max_shard_size="200MB")
    return folder


Network = tuple[Case, Callable[[], Any], Callable[[Any, Path], Path]]
NETWORKS: dict[str, Network] = {
    "resnet18": (
        Case("resnet18", lambda x: (flow_zoo.resnet18(x),), IMAGES),
        lambda: torchvision.models.resnet18(),
        torch_file,
    ),
    "resnet50": (
        Case("resnet50", lambda x: (flow_zoo.resnet50(x),), IMAGES),
        lambda: torchvision.models.resnet50(),
        torch_file,
    ),
    "mobilenet_v2": (
        Case("mobilenet_v2", lambda x: (flow_zoo.mobilenet_v2(x),), IMAGES),
        lambda: torchvision.models.mobilenet_v2(),
        torch_file,
    ),
    "vit": (
        Case("vit", lambda x: (flow_zoo.vit(x),), IMAGES),
        lambda: peers.vit(flow_zoo.VIT_B_16, 224, 1000),
        torch_file,
    ),
    "vit of Hugging Face": (
        Case(
            "vit", lambda x: (flow_zoo.vit(x, replace(flow_zoo.VIT_B_16, epsilon=1e-12)),), IMAGES
        ),
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)),
        hugging_face,
    ),
    "bert": (
        Case("bert", bert, (*WORDS, *SEGMENTS)),
        lambda: transformers.BertForPreTraining(peers.bert_config(flow_zoo.BERT_BASE)),
        hugging_face,
    ),
    "gpt2": (
        Case("gpt2", lambda x: (flow_zoo.gpt2(x),), WORDS),
        lambda: transformers.GPT2LMHeadModel(peers.gpt2_config(flow_zoo.GPT2)),
        hugging_face,
    ),
}


def calibrate(module: Any, inputs: Any) -> None:
    """Set the statistics of batch norms, without which features of many layers have no scale."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
    peers.results(module.train(), inputs)
    module.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_published_sizes_and_files(name: str, tmp_path: Path) -> None:
    """Errors are those from float64, below 1e-5 or twice those of torch in float32."""
    case, make, save = NETWORKS[name]
    module = make()
    if name == "vit":  # torchvision starts with zeros there
        torch.nn.init.normal_(module.heads.head.weight, std=0.02)
    inputs, job = case.batch(), case.job()
    calibrate(module, inputs)
    assert flow_zoo.load(case.model, save(module, tmp_path)).missing == []
    own, theirs = job(inputs), peers.results(module, inputs)
    exact = peers.results(module.double(), case.batch(flow.double))
    for found, peer, expected in zip(own, theirs, exact, strict=True):
        assert np.std(expected) > 0.05
        error, limit = (np.abs(x - expected).max() for x in (found, peer))
        assert error < max(1e-5, 2 * limit)


@pytest.mark.parametrize("name", CASES)
def test_the_record_is_that_of_the_installed_versions(name: str) -> None:
    found, expected = peers.recorded(name), record()[name]
    assert found["shapes"] == expected["shapes"]
    for one, other in zip(found["results"], expected["results"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_a_training_step_is_that_of_torch(name: str) -> None:
    """Their moving variances differ, since torch's is that of a sample."""
    case, module = cases(dropout=0.0)[name], peers.SMALL[name]().double().train()
    shapes = record()[name]["shapes"]
    module.load_state_dict({k: torch.from_numpy(v) for k, v in arrays(shapes).items()})
    peers.step(module, case.batch(flow.double))
    job = case.job(flow.double, train=True)
    flow_zoo.load(case.model, arrays(shapes))
    job(case.batch(flow.double))
    found = weights()
    flow_zoo.load(case.model, module.state_dict())
    for variable, expected in weights().items():
        if not variable.endswith("-moving_variance"):
            close = {"rtol": 1e-9, "atol": 1e-11, "err_msg": variable}
            np.testing.assert_allclose(found[variable], expected, **close)


def weights() -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
