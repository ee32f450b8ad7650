"""The benchmark networks, written with the public API.

Every network is the body of a job: it takes placeholders and returns the loss (or the result).
Parameters are variables with the names of the seeded parameters in `data.py`; dense weights have
the shape ``[in, out]``, and convolution weights have the layout ``OIHW``.
"""

import oneflow as flow

RESNET_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
BERT = {
    "bert_mini": {"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "batch": 8},
    "bert_base": {"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "batch": 2},
}
CHAIN = 1000
ROWS = 1_000_000
UNROLLED = {"compile_5k": 5000, "compile_20k": 20000}


def variable(name, shape, trainable=True):
    small = flow.constant_initializer(0.01)  # cheap; the benchmarks load other values
    return flow.get_variable(name, shape, initializer=small, trainable=trainable)


def dense(name, x, inputs, outputs):
    y = flow.matmul(x, variable(name + ".w", (inputs, outputs)))
    return flow.nn.bias_add(y, variable(name + ".b", (outputs,)))


def conv(name, x, inputs, outputs, size, stride, pad, bias=False):
    weight = variable(name + ".w", (outputs, inputs, size, size))
    pads = [[0, 0], [0, 0], [pad, pad], [pad, pad]]
    y = flow.nn.conv2d(x, weight, stride, pads, name=name)
    return flow.nn.bias_add(y, variable(name + ".b", (outputs,)), "NCHW") if bias else y


def cross_entropy(labels, logits):
    return flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def mlp(x, y):
    h = flow.nn.relu(dense("fc1", x, 784, 512))
    return cross_entropy(y, dense("fc2", h, 512, 10))


def lenet(x, y):
    x = flow.nn.relu(conv("conv1", x, 1, 32, 5, 1, 2, bias=True))
    x = flow.nn.max_pool2d(x, 2, 2, "VALID")
    x = flow.nn.relu(conv("conv2", x, 32, 64, 5, 1, 2, bias=True))
    x = flow.nn.max_pool2d(x, 2, 2, "VALID")
    x = flow.reshape(x, (x.shape[0], -1))
    x = flow.nn.relu(dense("fc1", x, 3136, 512))
    x = flow.nn.dropout(x, 0.5)
    return cross_entropy(y, dense("fc2", x, 512, 10))


def norm(name, x):
    """Apply batch normalisation; its variables start with the ones and zeros of `data.py`."""
    return flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-5, name=name)


def resnet50(x, y):
    x = flow.nn.relu(norm("stem_bn", conv("stem", x, 3, 64, 7, 2, 3)))
    x = flow.nn.max_pool2d(x, 3, 2, [[0, 0], [0, 0], [1, 1], [1, 1]])
    channels = 64
    for stage, (blocks, width, stride) in enumerate(RESNET_STAGES):
        for block in range(blocks):
            x = bottleneck(f"s{stage}.{block}", x, channels, width, stride if block == 0 else 1)
            channels = 4 * width
    x = flow.math.reduce_mean(x, axis=[2, 3])
    return cross_entropy(y, dense("fc", x, 2048, 1000))


def bottleneck(name, x, inputs, width, stride):
    r = flow.nn.relu(norm(name + ".bn0", conv(name + ".c0", x, inputs, width, 1, 1, 0)))
    r = flow.nn.relu(norm(name + ".bn1", conv(name + ".c1", r, width, width, 3, stride, 1)))
    r = norm(name + ".bn2", conv(name + ".c2", r, width, 4 * width, 1, 1, 0))
    if name.endswith(".0"):
        x = norm(name + ".down_bn", conv(name + ".down", x, inputs, 4 * width, 1, stride, 0))
    return flow.nn.relu(r + x)


def layer_norm(name, x):
    size = (x.shape[-1],)
    return flow.nn.layer_norm(
        x, gamma=variable(name + ".g", size), beta=variable(name + ".b", size),
        begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5,
    )  # fmt: skip


def attention(q, k, v, bias, heads):
    batch, length, hidden = q.shape
    size = hidden // heads

    def split(t):
        return flow.transpose(flow.reshape(t, (batch, length, heads, size)), perm=[0, 2, 1, 3])

    scores = flow.matmul(split(q), split(k), transpose_b=True) * size**-0.5 + bias
    mixed = flow.transpose(flow.matmul(flow.nn.softmax(scores), split(v)), perm=[0, 2, 1, 3])
    return flow.reshape(mixed, (batch, length, hidden))


def bert(config, vocabulary, ids, segments, mask, positions, labels):
    hidden, batch, length = config["hidden"], ids.shape[0], ids.shape[1]
    tokens = variable("tok", (vocabulary, hidden))
    x = flow.gather(tokens, ids) + flow.gather(variable("seg", (2, hidden)), segments)
    x = layer_norm("emb_ln", x + variable("pos", (length, hidden)))
    bias = flow.reshape((1.0 - flow.cast(mask, flow.float)) * -1e4, (batch, 1, 1, length))
    x = flow.reshape(x, (batch * length, hidden))
    for i in range(config["layers"]):
        x = encoder(f"{i}.", x, bias, config, (batch, length, hidden))
    picked = flow.gather(flow.reshape(x, (batch, length, hidden)), positions, axis=1, batch_dims=1)
    g = flow.reshape(picked, (-1, hidden))
    g = layer_norm("mlm_ln", flow.math.gelu(dense("mlm", g, hidden, hidden)))
    logits = flow.matmul(g, tokens, transpose_b=True) + variable("mlm_bias", (vocabulary,))
    return cross_entropy(flow.reshape(labels, (-1,)), logits)


def encoder(name, x, bias, config, shape):
    hidden = config["hidden"]
    q, k, v = (flow.reshape(dense(name + n, x, hidden, hidden), shape) for n in "qkv")
    a = flow.reshape(attention(q, k, v, bias, config["heads"]), (-1, hidden))
    x = layer_norm(name + "ln1", x + dense(name + "o", a, hidden, hidden))
    h = flow.math.gelu(dense(name + "ff1", x, hidden, config["ffn"]))
    return layer_norm(name + "ln2", x + dense(name + "ff2", h, config["ffn"], hidden))


def wide_deep(features, wide, deep, labels):
    rows = flow.gather(variable("deep", (ROWS, 16)), deep)
    h = flow.concat([flow.reshape(rows, (rows.shape[0], -1)), features], axis=1)
    sizes = (429, 1024, 512, 256)
    for i in (1, 2, 3):
        h = flow.nn.relu(dense(f"fc{i}", h, sizes[i - 1], sizes[i]))
    linear = flow.math.reduce_sum(flow.gather(variable("wide", (ROWS, 1)), wide), axis=1)
    logits = dense("fc4", h, 256, 1) + linear
    return flow.math.reduce_mean(flow.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def chain(x):
    for i in range(CHAIN):
        if i % 4 == 0:
            x = x + (0.1 + 0.01 * (i % 7))
        elif i % 4 == 1:
            x = x * (0.9 + 0.01 * (i % 5))
        elif i % 4 == 2:
            x = flow.math.relu(x)
        else:
            x = x - (0.05 + 0.01 * (i % 3))
    return x


def unrolled(count, x, w):
    for i in range(count // 10):
        y = flow.math.tanh(flow.matmul(x, w) + (0.01 + 0.001 * (i % 13)))
        x = y + x * (0.5 + 0.01 * (i % 11))
        y = flow.math.reduce_sum(flow.math.relu(x), axis=1, keepdims=True) * 0.05
        x = flow.math.sigmoid(x - y)
    return x
