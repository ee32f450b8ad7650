"""Published weights: names of older files, other classes, names of networks, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo_cases import BERT, CASES, CLASSES, GPT2, VIT, arrays, record

import flow_zoo
import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, ConfigError, InferenceError

RECORD = record()
IMAGES = tp.Numpy.Placeholder((1, 3, 16, 16))
TOKENS = tp.Numpy.Placeholder((1, 4), flow.int32)


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


def published(name: str) -> dict[str, Any]:
    return arrays(RECORD[name]["shapes"])


def weights() -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


def defined(network: Callable[[Any], Any], given: Any) -> Any:
    """Define a predict job of a network, and return it."""

    @flow.global_function()
    def job(x: given) -> tp.Numpy:
        return network(x)

    return job


UNUSED = {
    "resnet18": r".*num_batches_tracked",
    "resnet50": r".*num_batches_tracked",
    "mobilenet_v2": r".*num_batches_tracked",
    "vit": r"",
    "bert": r"cls\.(predictions\.decoder|seq_relationship)\.(weight|bias)",
    "gpt2": r"lm_head\.weight",
}


@pytest.mark.parametrize("name", CASES)
def test_all_weights_are_used(name: str) -> None:
    CASES[name].job()
    source = published(name)
    report = flow_zoo.load(CASES[name].model, source)
    unused = [key for key in source if re.fullmatch(UNUSED[name], key)]
    assert report.unused == unused
    assert sorted(report.loaded) == sorted(weights())
    assert set(report.loaded.values()) == set(source) - set(unused)


def older_bert(name: str) -> str:
    name = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


def older_vit(name: str) -> str:
    return name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2")


HUGGING_FACE = {
    "class_token": "embeddings.cls_token",
    "encoder.pos_embedding": "embeddings.position_embeddings",
    "conv_proj": "embeddings.patch_embeddings.projection",
    "encoder.layers.encoder_layer_": "encoder.layer.",
    "self_attention.out_proj": "attention.output.dense",
    "mlp.0": "intermediate.dense",
    "mlp.3": "output.dense",
    "ln_1": "layernorm_before",
    "ln_2": "layernorm_after",
    "encoder.ln": "layernorm",
}


def test_vit_of_hugging_face() -> None:
    job, source = CASES["vit"].job(), {}
    for name, value in published("vit").items():
        for theirs, other in HUGGING_FACE.items():
            name = name.replace(theirs, other)
        layer, _, kind = name.partition(".self_attention.in_proj_")
        if kind:
            for part, third in zip(("query", "key", "value"), np.split(value, 3), strict=True):
                source[f"vit.{layer}.attention.attention.{part}.{kind}"] = third
        else:
            source[name.replace("heads.head", "classifier")] = value
    report = flow_zoo.load("vit", source)
    assert (report.missing, report.unused) == ([], [])
    (found,) = job(CASES["vit"].batch())
    np.testing.assert_allclose(found, RECORD["vit"]["results"][0], rtol=0, atol=1e-5)
    report = flow_zoo.load("vit", source, head=False)
    assert report.unused == ["classifier.weight", "classifier.bias"]


@pytest.mark.parametrize(
    ("name", "older", "constants"),
    [
        ("bert", older_bert, {"embeddings.position_ids": np.arange(9)[None]}),
        ("vit", older_vit, {}),
        (
            "gpt2",
            lambda name: name.removeprefix("transformer."),
            {"h.0.attn.bias": np.ones((1, 1, 9, 9)), "h.1.attn.masked_bias": np.array(-1e4)},
        ),
    ],
)
def test_names_of_older_files(name: str, older: Callable[[str], str], constants: Any) -> None:
    case = CASES[name]
    job = case.job()
    source = {older(key): value for key, value in published(name).items()}
    assert source.keys() != published(name).keys()
    report = flow_zoo.load(case.model, source | constants)
    assert report.missing == []
    assert set(constants) <= set(report.unused)
    for found, expected in zip(job(case.batch()), RECORD[name]["results"], strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_files(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    library.save_file(published("vit"), tmp_path / "vit.safetensors")
    job = CASES["vit"].job()
    flow_zoo.load("vit", tmp_path / "vit.safetensors")
    (found,) = job(CASES["vit"].batch())
    np.testing.assert_allclose(found, RECORD["vit"]["results"][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "network", "head"),
    [
        ("resnet18", lambda x: flow_zoo.resnet(x, RESNET, 7), "resnet-fc"),
        ("mobilenet_v2", lambda x: flow_zoo.mobilenet_v2(x, 7), "mobilenet_v2-classifier.1"),
        ("vit", lambda x: flow_zoo.vit(x, VIT, 7), "vit-heads.head"),
    ],
)
def test_other_classes(name: str, network: Callable[[Any], Any], head: str) -> None:
    defined(network, IMAGES)
    model, source = CASES[name].model, published(name)
    with pytest.raises(CheckpointError, match=f"misshapen  '{head}"):
        flow_zoo.load(model, source)
    before = weights()
    report = flow_zoo.load(model, source, head=False)
    after = weights()
    assert report.missing == [f"{head}-bias", f"{head}-weight"]
    for variable, value in after.items():
        changed = not np.array_equal(value, before[variable])
        assert changed is not variable.startswith(head)
    del source[next(iter(source))]
    with pytest.raises(CheckpointError, match="missing") as error:
        flow_zoo.load(model, source, head=False)
    assert head not in str(error.value)


RESNET = flow_zoo.ResNetConfig((1, 1, 1, 1), bottleneck=False)


def test_two_networks_in_one_job() -> None:
    def both(images: Any) -> Any:
        teacher = flow_zoo.vit(images, VIT, CLASSES, name="teacher")
        with flow.scope.namespace("student"):
            return teacher - flow_zoo.vit(images, VIT, CLASSES)

    defined(both, IMAGES)
    source = published("vit")
    report = flow_zoo.load("vit", source, name="teacher")
    assert all(name.startswith("student-vit-") for name in report.missing)
    flow_zoo.load("vit", source, name="student-vit")
    found = weights()
    for name in (name for name in found if name.startswith("teacher-")):
        np.testing.assert_array_equal(found[name], found[f"student-vit-{name[8:]}"])


def test_deeper_networks_than_the_file_has() -> None:
    deeper = flow_zoo.GPT2Config(vocabulary=19, positions=9, width=24, layers=3, heads=3)
    defined(lambda tokens: flow_zoo.gpt2(tokens, deeper), TOKENS)
    before = weights()
    with pytest.raises(CheckpointError, match=r"missing    'gpt2-h\.2\.attn-key-bias'") as error:
        flow_zoo.load("gpt2", published("gpt2"))
    assert __file__ in str(error.value)
    assert all(np.array_equal(value, before[name]) for name, value in weights().items())


def test_unknown_models() -> None:
    for call in (lambda: flow_zoo.load("resnet500", {}), lambda: flow_zoo.rules("resnet500")):
        with pytest.raises(ConfigError, match="did you mean resnet50") as error:
            call()
        assert __file__ in str(error.value)


@pytest.mark.parametrize(
    ("network", "given", "text"),
    [
        (flow_zoo.resnet18, (1, 16, 16, 3), r"flow_zoo\.resnet18.*\n.*\(1, 16, 16, 3\)"),
        (flow_zoo.mobilenet_v2, (1, 1, 16, 16), r"flow_zoo\.mobilenet_v2.*\n.*\(1, 1, 16, 16\)"),
        (lambda x: flow_zoo.vit(x, VIT), (1, 3, 16, 20), "16 x 20 pixels\n.*multiples of .*, 8"),
        (lambda x: flow_zoo.bert(x, BERT), (2, 10), r"\(2, 10\)\n.*at most 9"),
        (lambda x: flow_zoo.gpt2(x, GPT2), (10,), r"\(10,\)\n.*at most 9"),
        (lambda x: flow_zoo.resnet(x, 3), (1, 3, 8, 8), "config=3\n.*a ResNetConfig"),
        (lambda x: flow_zoo.vit(x, GPT2), (1, 3, 8, 8), "config=GPT2Config.*\n.*a ViTConfig"),
        (lambda x: flow_zoo.bert(x, None), (2, 5), "config=None\n.*a BertConfig"),
        (lambda x: flow_zoo.gpt2(x, 3), (2, 5), "config=3\n.*a GPT2Config"),
    ],
)
def test_wrong_inputs(network: Callable[[Any], Any], given: Any, text: str) -> None:
    kind = flow.float32 if len(given) == 4 else flow.int32
    job = defined(network, tp.Numpy.Placeholder(given, kind))
    with pytest.raises(InferenceError, match=text) as error:
        job(np.zeros(given, kind.numpy))
    assert __file__ in str(error.value)
