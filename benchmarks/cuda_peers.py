"""The benchmark networks in torch and JAX on a GPU, as calls that do one training step.

Parameters are those of `data.py`, so that first losses can be compared.  A step copies its feeds to
the device and gives the loss back, as a job does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import data
import networks
import numpy as np

Step = Callable[[], float]
ADAM = ("bert_mini", "bert_base")
RATES = {"mlp": 0.1, "lenet": 0.1, "resnet50": 0.01, "wide_deep_sgd": 0.05}


def torch_step(workload: str, feeds: tuple[Any, ...], compiled: bool, amp: bool) -> Step:
    """A step in torch; ``compiled`` takes max-autotune."""
    import torch

    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    p = {
        name: torch.from_numpy(value).to(device).requires_grad_(_trained(name))
        for name, value in data.parameters(workload).items()
    }
    trained = [x for x in p.values() if x.requires_grad]
    if workload in ADAM:
        optimizer = torch.optim.Adam(trained, lr=1e-4, eps=1e-8, fused=True)
    else:
        momentum = 0.9 if workload == "resnet50" else 0
        optimizer = torch.optim.SGD(trained, lr=RATES[workload], momentum=momentum, fused=True)
    net = TorchNets(p)
    body = net.body(workload)
    if compiled:
        body = torch.compile(body, mode="max-autotune")
    held = [torch.from_numpy(np.ascontiguousarray(x)) for x in feeds]
    if device == "cuda":
        held = [x.pin_memory() for x in held]

    def step() -> float:
        given = [x.to(device, non_blocking=True) for x in held]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = body(*given)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def _trained(name: str) -> bool:
    return not name.endswith((".mean", ".variance"))


class TorchNets:
    """The networks of `networks.py` on torch's tensors.

    Args:
        p: parameters by name.
    """

    def __init__(self, p: dict[str, Any]) -> None:
        import torch

        self.p, self.f = p, torch.nn.functional

    def body(self, workload: str) -> Callable[..., Any]:
        """From feeds to loss."""
        if workload in networks.BERT:
            return lambda *feeds: self.bert(networks.BERT[workload], *feeds)
        return getattr(self, workload.removesuffix("_sgd"))  # type: ignore[no-any-return]

    def dense(self, name: str, x: Any) -> Any:
        return x @ self.p[name + ".w"] + self.p[name + ".b"]

    def conv(self, name: str, x: Any, stride: int, pad: int) -> Any:
        return self.f.conv2d(x, self.p[name + ".w"], self.p.get(name + ".b"), stride, pad)

    def loss(self, y: Any, logits: Any) -> Any:
        return self.f.cross_entropy(logits.float(), y.long())

    def mlp(self, x: Any, y: Any) -> Any:
        return self.loss(y, self.dense("fc2", self.f.relu(self.dense("fc1", x))))

    def lenet(self, x: Any, y: Any) -> Any:
        for name in ("conv1", "conv2"):
            x = self.f.max_pool2d(self.f.relu(self.conv(name, x, 1, 2)), 2, 2)
        x = self.f.relu(self.dense("fc1", x.flatten(1)))
        return self.loss(y, self.dense("fc2", self.f.dropout(x, 0.5)))

    def norm(self, name: str, x: Any) -> Any:
        mean, variance, g, b = (self.p[f"{name}.{k}"] for k in ("mean", "variance", "g", "b"))
        return self.f.batch_norm(x, mean, variance, g, b, True, 0.1, 1e-5)

    def resnet50(self, x: Any, y: Any) -> Any:
        import torch

        relu = self.f.relu
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.f.max_pool2d(relu(self.norm("stem_bn", self.conv("stem", x, 2, 3))), 3, 2, 1)
        for stage, (blocks, _, stride) in enumerate(networks.RESNET_STAGES):
            for block in range(blocks):
                name, step = f"s{stage}.{block}", stride if block == 0 else 1
                r = relu(self.norm(name + ".bn0", self.conv(name + ".c0", x, 1, 0)))
                r = relu(self.norm(name + ".bn1", self.conv(name + ".c1", r, step, 1)))
                r = self.norm(name + ".bn2", self.conv(name + ".c2", r, 1, 0))
                if block == 0:
                    x = self.norm(name + ".down_bn", self.conv(name + ".down", x, step, 0))
                x = relu(r + x)
        return self.loss(y, self.dense("fc", x.mean((2, 3))))

    def layer_norm(self, name: str, x: Any) -> Any:
        return self.f.layer_norm(x, x.shape[-1:], self.p[name + ".g"], self.p[name + ".b"], 1e-5)

    def bert(
        self, config: Any, ids: Any, segments: Any, mask: Any, positions: Any, labels: Any
    ) -> Any:
        p, hidden = self.p, config["hidden"]
        x = self.f.embedding(ids, p["tok"]) + self.f.embedding(segments, p["seg"]) + p["pos"]
        x = self.layer_norm("emb_ln", x)
        bias = ((1.0 - mask.float()) * -1e4)[:, None, None, :]
        for i in range(config["layers"]):
            x = self.encoder(f"{i}.", x, bias, config)
        index = positions.long()[:, :, None].expand(-1, -1, hidden)
        g = x.gather(1, index).reshape(-1, hidden)
        g = self.layer_norm("mlm_ln", self.f.gelu(self.dense("mlm", g)))
        return self.loss(labels.reshape(-1), g @ p["tok"].T + p["mlm_bias"])

    def encoder(self, name: str, x: Any, bias: Any, config: Any) -> Any:
        batch, length, hidden = x.shape
        heads = config["heads"]
        q, k, v = (
            self.dense(name + n, x).view(batch, length, heads, -1).transpose(1, 2) for n in "qkv"
        )
        a = self.f.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        a = a.transpose(1, 2).reshape(batch, length, hidden)
        x = self.layer_norm(name + "ln1", x + self.dense(name + "o", a))
        h = self.f.gelu(self.dense(name + "ff1", x))
        return self.layer_norm(name + "ln2", x + self.dense(name + "ff2", h))

    def wide_deep(self, features: Any, wide: Any, deep: Any, labels: Any) -> Any:
        import torch

        rows = self.f.embedding(deep, self.p["deep"]).flatten(1)
        h = torch.cat([rows, features], 1)
        for i in (1, 2, 3):
            h = self.f.relu(self.dense(f"fc{i}", h))
        logits = self.dense("fc4", h) + self.f.embedding(wide, self.p["wide"]).sum(1)
        return self.f.binary_cross_entropy_with_logits(logits, labels)


def jax_step(workload: str, feeds: tuple[Any, ...]) -> Step:
    """A step in JAX, jitted, of the networks that are bound by launches."""
    import jax

    body = {"mlp": _jax_mlp, "lenet": _jax_lenet}[workload]
    rate = RATES[workload]

    def update(p: Any, key: Any, *given: Any) -> Any:
        key, own = jax.random.split(key)
        loss, slopes = jax.value_and_grad(lambda q: body(jax, q, own, *given))(p)
        return {name: x - rate * slopes[name] for name, x in p.items()}, key, loss

    jitted = jax.jit(update, donate_argnums=(0, 1))
    state = {name: jax.device_put(x) for name, x in data.parameters(workload).items()}
    held = [state, jax.random.PRNGKey(0)]

    def step() -> float:
        held[0], held[1], loss = jitted(*held, *feeds)
        return float(loss)

    return step


def _jax_loss(jax: Any, y: Any, logits: Any) -> Any:
    rows = jax.nn.log_softmax(logits)
    return -jax.numpy.take_along_axis(rows, y[:, None], 1).mean()


def _jax_mlp(jax: Any, p: Any, _: Any, x: Any, y: Any) -> Any:
    h = jax.nn.relu(x @ p["fc1.w"] + p["fc1.b"])
    return _jax_loss(jax, y, h @ p["fc2.w"] + p["fc2.b"])


def _jax_lenet(jax: Any, p: Any, key: Any, x: Any, y: Any) -> Any:
    for name in ("conv1", "conv2"):
        x = jax.lax.conv(x, p[name + ".w"], (1, 1), "SAME") + p[name + ".b"][None, :, None, None]
        window = (1, 1, 2, 2)
        x = jax.lax.reduce_window(
            jax.nn.relu(x), -jax.numpy.inf, jax.lax.max, window, window, "VALID"
        )
    h = jax.nn.relu(x.reshape(x.shape[0], -1) @ p["fc1.w"] + p["fc1.b"])
    h = jax.numpy.where(jax.random.bernoulli(key, 0.5, h.shape), h / 0.5, 0)
    return _jax_loss(jax, y, h @ p["fc2.w"] + p["fc2.b"])


PEERS: dict[str, Callable[[str, tuple[Any, ...], bool], Step]] = {
    "torch eager": lambda workload, feeds, amp: torch_step(workload, feeds, False, amp),
    "torch.compile": lambda workload, feeds, amp: torch_step(workload, feeds, True, amp),
    "jax jit": lambda workload, feeds, _: jax_step(workload, feeds),
}
