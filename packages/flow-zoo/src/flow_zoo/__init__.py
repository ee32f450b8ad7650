"""Published networks as functions of jobs, and the weights that are published for them.

In: blobs of images or tokens.  Out: blobs of scores or features, from layers of ``oneflow`` alone.
A network is one module; its variables have the names of the published weights, below the network's
own name: ``resnet50-layer1.0.conv1-weight``.  `load` reads the files of torchvision and Hugging
Face.
"""

from flow_zoo.bert_encoder import BERT_BASE, BERT_LARGE, BertConfig, bert, bert_pooled, bert_words
from flow_zoo.gpt import GPT2, GPT2_LARGE, GPT2_MEDIUM, GPT2_XL, GPT2Config, gpt2
from flow_zoo.loading import load, rules
from flow_zoo.mobilenet import mobilenet_v2
from flow_zoo.resnet import RESNET18, RESNET50, ResNetConfig, resnet, resnet18, resnet50
from flow_zoo.vision_transformer import VIT_B_16, VIT_B_32, VIT_L_16, VIT_L_32, ViTConfig, vit

__version__ = "0.1.0"

__all__ = [
    "BERT_BASE", "BERT_LARGE", "GPT2", "GPT2_LARGE", "GPT2_MEDIUM", "GPT2_XL", "RESNET18",
    "RESNET50", "VIT_B_16", "VIT_B_32", "VIT_L_16", "VIT_L_32", "BertConfig", "GPT2Config",
    "ResNetConfig", "ViTConfig", "bert", "bert_pooled", "bert_words", "gpt2", "load",
    "mobilenet_v2", "resnet", "resnet18", "resnet50", "rules", "vit",
]  # fmt: skip
