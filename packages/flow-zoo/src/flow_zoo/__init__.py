"""Published networks as functions of jobs, and the weights that are published for them.

In: blobs of images or tokens.  Out: blobs of scores or features, from layers of ``oneflow`` alone.
A network is one module; its variables have the names of the published weights, below the network's
own name: ``resnet50-layer1.0.conv1-weight``.  `load` reads the files of torchvision and Hugging
Face.
"""

from flow_zoo.bert_encoder import BERT_BASE as BERT_BASE
from flow_zoo.bert_encoder import BERT_LARGE as BERT_LARGE
from flow_zoo.bert_encoder import BertConfig as BertConfig
from flow_zoo.bert_encoder import bert as bert
from flow_zoo.bert_encoder import bert_pooled as bert_pooled
from flow_zoo.bert_encoder import bert_words as bert_words
from flow_zoo.gpt import GPT2 as GPT2
from flow_zoo.gpt import GPT2_LARGE as GPT2_LARGE
from flow_zoo.gpt import GPT2_MEDIUM as GPT2_MEDIUM
from flow_zoo.gpt import GPT2_XL as GPT2_XL
from flow_zoo.gpt import GPT2Config as GPT2Config
from flow_zoo.gpt import gpt2 as gpt2
from flow_zoo.loading import load as load
from flow_zoo.loading import rules as rules
from flow_zoo.mobilenet import mobilenet_v2 as mobilenet_v2
from flow_zoo.resnet import RESNET18 as RESNET18
from flow_zoo.resnet import RESNET50 as RESNET50
from flow_zoo.resnet import ResNetConfig as ResNetConfig
from flow_zoo.resnet import resnet as resnet
from flow_zoo.resnet import resnet18 as resnet18
from flow_zoo.resnet import resnet50 as resnet50
from flow_zoo.vision_transformer import VIT_B_16 as VIT_B_16
from flow_zoo.vision_transformer import VIT_B_32 as VIT_B_32
from flow_zoo.vision_transformer import VIT_L_16 as VIT_L_16
from flow_zoo.vision_transformer import VIT_L_32 as VIT_L_32
from flow_zoo.vision_transformer import ViTConfig as ViTConfig
from flow_zoo.vision_transformer import vit as vit

__version__ = "0.1.0"
