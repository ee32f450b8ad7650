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
    torch.set_float32_matmul_precision("high")  # TF32, as our jobs and JAX's have it
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


def jax_step(workload: str, feeds: tuple[Any, ...], amp: bool) -> Step:
    """A step in JAX, jitted; moving statistics of normalisations stay as they are."""
    import jax

    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    values = data.parameters(workload)
    fixed = {name: jax.device_put(x) for name, x in values.items() if not _trained(name)}
    trained = {name: jax.device_put(x) for name, x in values.items() if _trained(name)}

    def loss_of(p: Any, key: Any, *given: Any) -> Any:
        return JaxNets({**p, **fixed}, key, amp).body(workload)(*given)

    def update(p: Any, states: Any, count: Any, key: Any, *given: Any) -> Any:
        key, own = jax.random.split(key)
        loss, slopes = jax.value_and_grad(loss_of)(p, own, *given)
        change = _jax_adam if workload in ADAM else _jax_sgd
        rows = {name: change(workload, p[name], slopes[name], states[name], count) for name in p}
        new, states = ({name: row[k] for name, row in rows.items()} for k in (0, 1))
        return new, states, count + 1, key, loss

    jitted = jax.jit(update, donate_argnums=(0, 1, 2, 3))
    zeros = {name: (0 * x, 0 * x) for name, x in trained.items()}
    held = [trained, zeros, jax.numpy.zeros((), "int32"), jax.random.PRNGKey(0)]

    def step() -> float:
        *held[:], loss = jitted(*held, *feeds)
        return float(loss)

    return step


def _jax_sgd(workload: str, x: Any, slope: Any, states: Any, _: Any) -> Any:
    speed = states[0] * (0.9 if workload == "resnet50" else 0) + slope
    return x - RATES[workload] * speed, (speed, states[1])


def _jax_adam(_: str, x: Any, slope: Any, states: Any, count: Any) -> Any:
    mean = 0.9 * states[0] + 0.1 * slope
    square = 0.999 * states[1] + 0.001 * slope * slope
    steps = count + 1
    size = (square / (1 - 0.999**steps)) ** 0.5 + 1e-8
    return x - 1e-4 * mean / (1 - 0.9**steps) / size, (mean, square)


class JaxNets:
    """The networks of `networks.py` on JAX's arrays.

    Args:
        p: parameters by name.
        key: for dropout.
        amp: whether products are those of bfloat16.
    """

    def __init__(self, p: dict[str, Any], key: Any, amp: bool) -> None:
        import jax

        self.p, self.key, self.jax, self.np = p, key, jax, jax.numpy
        self.kind = jax.numpy.bfloat16 if amp else jax.numpy.float32

    def body(self, workload: str) -> Callable[..., Any]:
        """From feeds to loss."""
        if workload in networks.BERT:
            return lambda *feeds: self.bert(networks.BERT[workload], *feeds)
        return getattr(self, workload.removesuffix("_sgd"))  # type: ignore[no-any-return]

    def cast(self, name: str) -> Any:
        return self.p[name].astype(self.kind)

    def dense(self, name: str, x: Any) -> Any:
        return x.astype(self.kind) @ self.cast(name + ".w") + self.cast(name + ".b")

    def conv(self, name: str, x: Any, stride: int, pad: int) -> Any:
        y = self.jax.lax.conv_general_dilated(
            x.astype(self.kind), self.cast(name + ".w"), (stride, stride), [(pad, pad)] * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )  # fmt: skip
        return y + self.cast(name + ".b")[None, :, None, None] if name + ".b" in self.p else y

    def pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        pads = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
        window, steps = (1, 1, size, size), (1, 1, stride, stride)
        return self.jax.lax.reduce_window(x, -self.np.inf, self.jax.lax.max, window, steps, pads)

    def loss(self, y: Any, logits: Any) -> Any:
        rows = self.jax.nn.log_softmax(logits.astype("float32"))
        return -self.np.take_along_axis(rows, y[:, None], 1).mean()

    def mlp(self, x: Any, y: Any) -> Any:
        return self.loss(y, self.dense("fc2", self.jax.nn.relu(self.dense("fc1", x))))

    def lenet(self, x: Any, y: Any) -> Any:
        relu = self.jax.nn.relu
        for name in ("conv1", "conv2"):
            x = self.pool(relu(self.conv(name, x, 1, 2)), 2, 2, 0)
        h = relu(self.dense("fc1", x.reshape(x.shape[0], -1)))
        h = self.np.where(self.jax.random.bernoulli(self.key, 0.5, h.shape), h / 0.5, 0)
        return self.loss(y, self.dense("fc2", h))

    def norm(self, name: str, x: Any) -> Any:
        wide = x.astype("float32")
        mean = wide.mean((0, 2, 3), keepdims=True)
        spread = wide.var((0, 2, 3), keepdims=True)
        g, b = (self.p[f"{name}.{k}"][None, :, None, None] for k in "gb")
        return ((wide - mean) * self.jax.lax.rsqrt(spread + 1e-5) * g + b).astype(self.kind)

    def resnet50(self, x: Any, y: Any) -> Any:
        relu = self.jax.nn.relu
        x = self.pool(relu(self.norm("stem_bn", self.conv("stem", x, 2, 3))), 3, 2, 1)
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
        wide = x.astype("float32")
        mean, spread = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
        y = (wide - mean) * self.jax.lax.rsqrt(spread + 1e-5)
        return y * self.p[name + ".g"] + self.p[name + ".b"]

    def bert(
        self, config: Any, ids: Any, segments: Any, mask: Any, positions: Any, labels: Any
    ) -> Any:
        p, hidden = self.p, config["hidden"]
        x = self.layer_norm("emb_ln", p["tok"][ids] + p["seg"][segments] + p["pos"])
        bias = ((1.0 - mask.astype("float32")) * -1e4)[:, None, None, :]
        for i in range(config["layers"]):
            x = self.encoder(f"{i}.", x, bias, config)
        g = self.np.take_along_axis(x, positions[:, :, None], 1).reshape(-1, hidden)
        g = self.layer_norm("mlm_ln", self.jax.nn.gelu(self.dense("mlm", g), approximate=False))
        logits = g.astype(self.kind) @ self.cast("tok").T + self.cast("mlm_bias")
        return self.loss(labels.reshape(-1), logits)

    def encoder(self, name: str, x: Any, bias: Any, config: Any) -> Any:
        batch, length, hidden = x.shape
        heads = (batch, length, config["heads"], -1)
        q, k, v = (self.dense(name + n, x).reshape(heads).swapaxes(1, 2) for n in "qkv")
        scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
        shares = self.jax.nn.softmax(scores.astype("float32") + bias).astype(self.kind)
        a = (shares @ v).swapaxes(1, 2).reshape(batch, length, hidden)
        x = self.layer_norm(name + "ln1", x + self.dense(name + "o", a))
        h = self.jax.nn.gelu(self.dense(name + "ff1", x), approximate=False)
        return self.layer_norm(name + "ln2", x + self.dense(name + "ff2", h))

    def wide_deep(self, features: Any, wide: Any, deep: Any, labels: Any) -> Any:
        rows = self.p["deep"][deep].reshape(deep.shape[0], -1)
        h = self.np.concatenate([rows, features], 1)
        for i in (1, 2, 3):
            h = self.jax.nn.relu(self.dense(f"fc{i}", h))
        x = self.dense("fc4", h) + self.p["wide"][wide].sum(1)
        return (self.np.maximum(x, 0) - x * labels + self.np.log1p(self.np.exp(-abs(x)))).mean()


PEERS: dict[str, Callable[[str, tuple[Any, ...], bool], Step]] = {
    "torch eager": lambda workload, feeds, amp: torch_step(workload, feeds, False, amp),
    "torch.compile": lambda workload, feeds, amp: torch_step(workload, feeds, True, amp),
    "jax jit": jax_step,
}
