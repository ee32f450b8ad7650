"""The same networks in torchvision and transformers, without dropout; imports both.

``python -m zoo_cases.peers`` records their results: ``nox -s zoo -- --record``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torchvision
import transformers
from torchvision.models import resnet
from torchvision.models.vision_transformer import VisionTransformer
from tqdm import tqdm

from zoo_cases import BERT, CASES, CLASSES, GPT2, RATE, RECORD, VIT, arrays

tqdm.monitor_interval = 0  # else its thread survives the test that saves a network


def bert_config(config: Any) -> Any:
    """Return the configuration of transformers for one of `flow_zoo`."""
    sizes = asdict(config)
    return transformers.BertConfig(
        vocab_size=sizes["vocabulary"], max_position_embeddings=sizes["positions"],
        type_vocab_size=sizes["segments"], hidden_size=sizes["width"],
        num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        intermediate_size=sizes["hidden"], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def gpt2_config(config: Any) -> Any:
    """Return the configuration of transformers for one of `flow_zoo`."""
    last = config.vocabulary - 1
    return transformers.GPT2Config(
        vocab_size=config.vocabulary, n_positions=config.positions, n_embd=config.width,
        n_layer=config.layers, n_head=config.heads, bos_token_id=last, eos_token_id=last,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip


def vit(config: Any, size: int, classes: int) -> Any:
    """Return torchvision's network for a configuration of `flow_zoo`."""
    return VisionTransformer(
        size, config.patch, config.layers, config.heads, config.width, config.hidden,
        num_classes=classes,
    )  # fmt: skip


SMALL = {
    "resnet18": lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], CLASSES),
    "resnet50": lambda: resnet.ResNet(resnet.Bottleneck, [2, 1, 1, 1], CLASSES),
    "mobilenet_v2": lambda: torchvision.models.mobilenet_v2(num_classes=CLASSES, dropout=0.0),
    "vit": lambda: vit(VIT, 16, CLASSES),
    "bert": lambda: transformers.BertForPreTraining(bert_config(BERT)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(gpt2_config(GPT2)),
}


def results(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Return the arrays that a network of `SMALL`, or one of its kind, computes."""
    with torch.no_grad():
        return [x.numpy() for x in _results(module, inputs)]


def step(module: Any, inputs: tuple[Any, ...]) -> None:
    """Take the step of `zoo_cases.Case.job`."""
    loss = sum(torch.mean(torch.square(y)) for y in _results(module, inputs))
    loss.backward()
    torch.optim.SGD(module.parameters(), RATE).step()


def _results(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    given = [torch.from_numpy(x if x.dtype.kind == "f" else x.astype(np.int64)) for x in inputs]
    if isinstance(module, transformers.BertForPreTraining):
        tokens, segments, mask = given
        found = module.bert(tokens, attention_mask=mask, token_type_ids=segments)
        words = module.cls.predictions(found.last_hidden_state)
        return [found.last_hidden_state, found.pooler_output, words]
    found = module(*given)
    return [getattr(found, "logits", found)]


def recorded(name: str) -> dict[str, Any]:
    """Return names and shapes of the weights of a small network, and its results in float64."""
    module = SMALL[name]().eval()
    state = module.state_dict()
    shapes = {key: list(value.shape) for key, value in state.items()}
    module.load_state_dict({k: torch.from_numpy(v) for k, v in arrays(shapes).items()})
    inputs = tuple(x.astype(np.float64) if x.dtype.kind == "f" else x for x in CASES[name].inputs)
    found = results(module.double(), inputs)
    return {"shapes": shapes, "results": [np.round(x, 12).tolist() for x in found]}


def main() -> None:
    """Write the record."""
    versions = {m.__name__: m.__version__ for m in (torch, torchvision, transformers)}
    lines = [f' "versions": {json.dumps(versions)}']
    lines += [f" {json.dumps(name)}: {json.dumps(recorded(name))}" for name in SMALL]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
