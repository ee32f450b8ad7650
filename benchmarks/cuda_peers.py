"""The benchmark networks in torch and JAX on a GPU, as calls that run one training step.

Parameters are those of `data.py`, so that first losses can be compared.  A step copies its feeds
to the device and returns the loss, as a job does.  The networks are written once, in `Nets`; a
subclass for each library implements the building blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import data
import networks
import numpy as np

Step = Callable[[], float]
ADAM = ("bert_mini", "bert_base")
RATES = {"mlp": 0.1, "lenet": 0.1, "resnet50": 0.01, "wide_deep_sgd": 0.05}


class Nets(ABC):
    """The networks of `networks.py`.

    Args:
        p: parameters, keyed by name.
    """

    def __init__(self, p: dict[str, Any]) -> None:
        self.p = p

    def body(self, workload: str) -> Callable[..., Any]:
        """Return the function that computes the loss of a batch."""
        if workload in networks.BERT:
            return lambda *feeds: self.bert(networks.BERT[workload], *feeds)
        return getattr(self, workload.removesuffix("_sgd"))  # type: ignore[no-any-return]

    # --- building blocks

    @abstractmethod
    def relu(self, x: Any) -> Any: ...

    @abstractmethod
    def gelu(self, x: Any) -> Any: ...

    @abstractmethod
    def dropped(self, x: Any) -> Any:
        """Apply dropout at a rate of one half."""

    @abstractmethod
    def product(self, x: Any, name: str, turned: bool = False) -> Any:
        """Multiply rows by a parameter, or by its transpose if ``turned``."""

    @abstractmethod
    def conv(self, name: str, x: Any, stride: int, pad: int) -> Any: ...

    @abstractmethod
    def pool(self, x: Any, size: int, stride: int, pad: int) -> Any: ...

    @abstractmethod
    def norm(self, name: str, x: Any) -> Any: ...

    @abstractmethod
    def layer_norm(self, name: str, x: Any) -> Any: ...

    @abstractmethod
    def loss(self, y: Any, logits: Any) -> Any: ...

    @abstractmethod
    def binary_loss(self, labels: Any, logits: Any) -> Any: ...

    @abstractmethod
    def images(self, x: Any) -> Any:
        """Convert images to the library's preferred layout."""

    @abstractmethod
    def rows(self, name: str, index: Any) -> Any:
        """Look up rows of a table, which is a parameter."""

    @abstractmethod
    def beside(self, x: Any, y: Any) -> Any:
        """Concatenate columns."""

    @abstractmethod
    def picked(self, x: Any, positions: Any) -> Any:
        """Return some positions of each sequence as rows."""

    @abstractmethod
    def mask(self, mask: Any) -> Any:
        """Return the attention bias that is added to the scores."""

    @abstractmethod
    def attention(self, q: Any, k: Any, v: Any, bias: Any) -> Any:
        """Compute attention; arguments and result have axes (batch, positions, heads, width)."""

    # --- networks

    def dense(self, name: str, x: Any) -> Any:
        return self.product(x, name + ".w") + self.p[name + ".b"]

    def mlp(self, x: Any, y: Any) -> Any:
        return self.loss(y, self.dense("fc2", self.relu(self.dense("fc1", x))))

    def lenet(self, x: Any, y: Any) -> Any:
        for name in ("conv1", "conv2"):
            x = self.pool(self.relu(self.conv(name, x, 1, 2)), 2, 2, 0)
        x = self.relu(self.dense("fc1", x.reshape(x.shape[0], -1)))
        return self.loss(y, self.dense("fc2", self.dropped(x)))

    def resnet50(self, x: Any, y: Any) -> Any:
        relu, x = self.relu, self.images(x)
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

    def bert(
        self, config: Any, ids: Any, segments: Any, mask: Any, positions: Any, labels: Any
    ) -> Any:
        x = self.rows("tok", ids) + self.rows("seg", segments) + self.p["pos"]
        x, bias = self.layer_norm("emb_ln", x), self.mask(mask)
        for i in range(config["layers"]):
            x = self.encoder(f"{i}.", x, bias, config["heads"])
        g = self.gelu(self.dense("mlm", self.picked(x, positions)))
        logits = self.product(self.layer_norm("mlm_ln", g), "tok", True) + self.p["mlm_bias"]
        return self.loss(labels.reshape(-1), logits)

    def encoder(self, name: str, x: Any, bias: Any, heads: int) -> Any:
        batch, length, hidden = x.shape
        q, k, v = (self.dense(name + n, x).reshape(batch, length, heads, -1) for n in "qkv")
        a = self.attention(q, k, v, bias).reshape(batch, length, hidden)
        x = self.layer_norm(name + "ln1", x + self.dense(name + "o", a))
        h = self.gelu(self.dense(name + "ff1", x))
        return self.layer_norm(name + "ln2", x + self.dense(name + "ff2", h))

    def wide_deep(self, features: Any, wide: Any, deep: Any, labels: Any) -> Any:
        h = self.beside(self.rows("deep", deep).reshape(deep.shape[0], -1), features)
        for i in (1, 2, 3):
            h = self.relu(self.dense(f"fc{i}", h))
        return self.binary_loss(labels, self.dense("fc4", h) + self.rows("wide", wide).sum(1))


# --- torch


def torch_step(workload: str, feeds: tuple[Any, ...], compiled: bool, amp: bool) -> Step:
    """Return a step in torch; if ``compiled``, torch.compile tunes it with max-autotune."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # TF32, as in flow's jobs and JAX
    device = "cuda" if torch.cuda.is_available() else "cpu"
    p = {}
    for name, value in data.parameters(workload).items():
        form = torch.channels_last if value.ndim == 4 and amp else torch.contiguous_format
        made = torch.from_numpy(value).to(device).contiguous(memory_format=form)
        p[name] = made.requires_grad_(_trained(name))
    trained = [x for x in p.values() if x.requires_grad]
    if workload in ADAM:
        optimizer = torch.optim.Adam(trained, lr=1e-4, eps=1e-8, fused=True)
    else:
        momentum = 0.9 if workload == "resnet50" else 0
        optimizer = torch.optim.SGD(trained, lr=RATES[workload], momentum=momentum, fused=True)
    body = TorchNets(p).body(workload)
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


class TorchNets(Nets):
    """The networks in torch, with autocast for mixed precision."""

    def __init__(self, p: dict[str, Any]) -> None:
        import torch

        super().__init__(p)
        self.torch, self.f = torch, torch.nn.functional

    def relu(self, x: Any) -> Any:
        return self.f.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.f.gelu(x)

    def dropped(self, x: Any) -> Any:
        return self.f.dropout(x, 0.5)

    def product(self, x: Any, name: str, turned: bool = False) -> Any:
        return x @ (self.p[name].T if turned else self.p[name])

    def conv(self, name: str, x: Any, stride: int, pad: int) -> Any:
        return self.f.conv2d(x, self.p[name + ".w"], self.p.get(name + ".b"), stride, pad)

    def pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        return self.f.max_pool2d(x, size, stride, pad)

    def norm(self, name: str, x: Any) -> Any:
        mean, variance, g, b = (self.p[f"{name}.{k}"] for k in ("mean", "variance", "g", "b"))
        return self.f.batch_norm(x, mean, variance, g, b, True, 0.1, 1e-5)

    def layer_norm(self, name: str, x: Any) -> Any:
        return self.f.layer_norm(x, x.shape[-1:], self.p[name + ".g"], self.p[name + ".b"], 1e-5)

    def loss(self, y: Any, logits: Any) -> Any:
        return self.f.cross_entropy(logits.float(), y.long())

    def binary_loss(self, labels: Any, logits: Any) -> Any:
        return self.f.binary_cross_entropy_with_logits(logits, labels)

    def images(self, x: Any) -> Any:
        return x.contiguous(memory_format=self.torch.channels_last)

    def rows(self, name: str, index: Any) -> Any:
        return self.f.embedding(index, self.p[name])

    def beside(self, x: Any, y: Any) -> Any:
        return self.torch.cat([x, y], 1)

    def picked(self, x: Any, positions: Any) -> Any:
        index = positions.long()[:, :, None].expand(-1, -1, x.shape[-1])
        return x.gather(1, index).reshape(-1, x.shape[-1])

    def mask(self, mask: Any) -> Any:
        return ((1.0 - mask.float()) * -1e4)[:, None, None, :]

    def attention(self, q: Any, k: Any, v: Any, bias: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mixed = self.f.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return mixed.transpose(1, 2)


# --- JAX


def jax_step(workload: str, feeds: tuple[Any, ...], amp: bool) -> Step:
    """Return a jitted step in JAX, which does not update moving statistics of normalizations."""
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


class JaxNets(Nets):
    """The networks in JAX; XLA chooses layouts.

    Args:
        p: parameters, keyed by name.
        key: random key for dropout.
        amp: whether products use bfloat16.
    """

    def __init__(self, p: dict[str, Any], key: Any, amp: bool) -> None:
        import jax

        super().__init__(p)
        self.key, self.jax, self.np = key, jax, jax.numpy
        self.kind = jax.numpy.bfloat16 if amp else jax.numpy.float32

    def cast(self, name: str) -> Any:
        return self.p[name].astype(self.kind)

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.jax.nn.gelu(x, approximate=False)

    def dropped(self, x: Any) -> Any:
        return self.np.where(self.jax.random.bernoulli(self.key, 0.5, x.shape), x / 0.5, 0)

    def product(self, x: Any, name: str, turned: bool = False) -> Any:
        return x.astype(self.kind) @ (self.cast(name).T if turned else self.cast(name))

    def dense(self, name: str, x: Any) -> Any:
        return self.product(x, name + ".w") + self.cast(name + ".b")

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

    def norm(self, name: str, x: Any) -> Any:
        g, b = (self.p[f"{name}.{k}"][None, :, None, None] for k in "gb")
        return (self.normal(x, (0, 2, 3)) * g + b).astype(self.kind)

    def layer_norm(self, name: str, x: Any) -> Any:
        return self.normal(x, -1) * self.p[name + ".g"] + self.p[name + ".b"]

    def normal(self, x: Any, axes: Any) -> Any:
        """Normalize to mean 0 and variance 1 in float32."""
        wide = x.astype("float32")
        mean, spread = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
        return (wide - mean) * self.jax.lax.rsqrt(spread + 1e-5)

    def loss(self, y: Any, logits: Any) -> Any:
        rows = self.jax.nn.log_softmax(logits.astype("float32"))
        return -self.np.take_along_axis(rows, y[:, None], 1).mean()

    def binary_loss(self, labels: Any, logits: Any) -> Any:
        small = self.np.log1p(self.np.exp(-abs(logits)))
        return (self.np.maximum(logits, 0) - logits * labels + small).mean()

    def images(self, x: Any) -> Any:
        return x

    def rows(self, name: str, index: Any) -> Any:
        return self.p[name][index]

    def beside(self, x: Any, y: Any) -> Any:
        return self.np.concatenate([x, y], 1)

    def picked(self, x: Any, positions: Any) -> Any:
        found = self.np.take_along_axis(x, positions[:, :, None], 1)
        return found.reshape(-1, x.shape[-1])

    def mask(self, mask: Any) -> Any:
        return ((1.0 - mask.astype("float32")) * -1e4)[:, None, None, :]

    def attention(self, q: Any, k: Any, v: Any, bias: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
        shares = self.jax.nn.softmax(scores.astype("float32") + bias).astype(self.kind)
        return (shares @ v).swapaxes(1, 2)


PEERS: dict[str, Callable[[str, tuple[Any, ...], bool], Step]] = {
    "torch eager": lambda workload, feeds, amp: torch_step(workload, feeds, False, amp),
    "torch.compile": lambda workload, feeds, amp: torch_step(workload, feeds, True, amp),
    "jax jit": jax_step,
}
