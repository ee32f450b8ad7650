"""Small forms of the networks of flow-zoo, with weights that depend on names alone.

`recorded.json` has the names and shapes of the weights of the same networks in torchvision and
transformers, and their results in float64; ``nox -s zoo -- --record`` writes it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import flow_zoo
import oneflow as flow
import oneflow.typing as tp

RECORD = Path(__file__).with_name("recorded.json")


COPIES = {
    "lm_head.weight": "transformer.wte.weight",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Weights that share their numbers with others."""


def arrays(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return weights of these shapes, with which features keep their order of magnitude."""
    return {name: _array(COPIES.get(name, name), shape) for name, shape in shapes.items()}


def _array(name: str, shape: Sequence[int]) -> Any:
    drawn = np.random.default_rng(zlib.crc32(name.encode())).random(shape) - 0.5
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
        return (1 + drawn).astype(np.float32)
    inputs = shape[0] if "c_" in name else np.prod(shape[1:])
    scale = 0.5 if len(shape) == 1 else 1 if "embed" in name else 4 / np.sqrt(inputs)
    return (scale * drawn).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A small network.

    Attributes:
        model: the network's name for `flow_zoo.load`.
        network: the function from blobs to a tuple of results.
        inputs: the arrays of a batch; an image is (batch, 3, height, width), tokens are integers.
    """

    model: str
    network: Callable[..., Any]
    inputs: tuple[Any, ...]

    def job(self, kind: Any = flow.float32, *, train: bool = False, devices: int = 1) -> Any:
        """Return the job that computes the results, or trains them to be zero.

        It takes all inputs as a tuple.
        """
        settings = flow.function_config()
        settings.default_data_type(kind)
        settings.default_placement_scope(flow.scope.placement("cpu", f"0:0-{devices - 1}"))

        def body(inputs: Any) -> Any:
            results = self.network(*inputs)
            if not train:
                return results
            loss = sum(flow.math.reduce_mean(flow.math.square(y)) for y in results)
            flow.optimizer.SGD(RATE, momentum=0).minimize(loss)
            return loss

        body.__annotations__ = {
            "inputs": tuple[tuple(_placeholder(x, kind) for x in self.inputs)],
            "return": tp.Numpy if train else tp.Bundle[tp.Numpy],
        }
        kind_of_job = "train" if train else "predict"
        return flow.global_function(type=kind_of_job, function_config=settings)(body)

    def batch(self, kind: Any = flow.float32) -> tuple[Any, ...]:
        """Return the inputs, floating-point ones in an element type."""
        return tuple(x.astype(kind.numpy) if x.dtype.kind == "f" else x for x in self.inputs)


def _placeholder(x: Any, kind: Any) -> Any:
    return tp.Numpy.Placeholder(x.shape, kind if x.dtype.kind == "f" else flow.int32)


def _images(size: int) -> Any:
    return np.random.default_rng(size).random((4, 3, size, size)) - 0.5


def _tokens(vocabulary: int) -> Any:
    return np.random.default_rng(vocabulary).integers(1, vocabulary, (2, 6)).astype(np.int32)


CLASSES, RATE = 5, 2.0**-10  # which float32 represents
TINY = {"width": 24, "layers": 2, "heads": 3}
VIT = flow_zoo.ViTConfig(patch=8, hidden=40, **TINY)
BERT = flow_zoo.BertConfig(vocabulary=19, positions=9, hidden=40, **TINY)
GPT2 = flow_zoo.GPT2Config(vocabulary=19, positions=9, **TINY)
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]], np.int32)


def _resnet(blocks: tuple[int, int, int, int], bottleneck: bool) -> Case:
    config = flow_zoo.ResNetConfig(blocks, bottleneck)
    return Case("resnet", lambda x: (flow_zoo.resnet(x, config, CLASSES),), (_images(64),))


def cases(dropout: float) -> dict[str, Case]:
    """Return small forms of the networks, by the published one."""
    own_vit, own_bert, own_gpt2 = (replace(c, dropout=dropout) for c in (VIT, BERT, GPT2))

    def bert(tokens: Any, segments: Any, mask: Any) -> Any:
        features = flow_zoo.bert(tokens, own_bert, segments, mask)
        pooled = flow_zoo.bert_pooled(features, own_bert)
        return features, pooled, flow_zoo.bert_words(features, own_bert)

    return {
        "resnet18": _resnet((1, 1, 1, 1), False),
        "resnet50": _resnet((2, 1, 1, 1), True),
        "mobilenet_v2": Case(
            "mobilenet_v2", lambda x: (flow_zoo.mobilenet_v2(x, CLASSES, dropout),), (_images(64),)
        ),
        "vit": Case("vit", lambda x: (flow_zoo.vit(x, own_vit, CLASSES),), (_images(16),)),
        "bert": Case("bert", bert, (_tokens(19), SEGMENTS, MASK)),
        "gpt2": Case("gpt2", lambda x: (flow_zoo.gpt2(x, own_gpt2),), (_tokens(19),)),
    }


CASES = cases(dropout=0.1)


def record() -> dict[str, Any]:
    """Return what `recorded.json` contains."""
    return dict(json.loads(RECORD.read_text()))
