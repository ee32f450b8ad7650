"""Networks of torchvision, exported by torch and loaded into jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

torch = pytest.importorskip("torch")
models = pytest.importorskip("torchvision.models")

NETWORKS = (
    "alexnet", "resnet18", "mobilenet_v2", "squeezenet1_1", "vgg11", "googlenet",
    "shufflenet_v2_x0_5", "mnasnet0_5", "densenet121", "efficientnet_b0", "regnet_y_400mf",
    "mobilenet_v3_small", "convnext_tiny", "vit_b_16", "swin_t", "inception_v3",
)  # fmt: skip


def network(name: str) -> Any:
    """A network with random weights of a size that keeps its activations near one."""
    torch.manual_seed(0)
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    found = getattr(models, name)(weights=None, **options).eval()
    for parameter in found.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.2 * float(parameter[0].numel()) ** -0.5)
    for key, buffer in found.named_buffers():
        if "running_mean" in key:
            buffer.normal_(std=0.1)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_torch_computes(name: str, tmp_path: Path) -> None:
    side = 299 if name == "inception_v3" else 224
    found, image = network(name), torch.randn(1, 3, side, side)
    path = tmp_path / "model.onnx"
    torch.onnx.export(found, (image,), str(path), dynamo=False, opset_version=17)
    with torch.no_grad():
        expected = found(image).numpy()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1, 3, side, side))) -> tp.Numpy:
        return flow.onnx.load(path, x)

    np.testing.assert_allclose(job(image), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
