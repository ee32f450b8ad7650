"""Names of PyTorch, Keras and JAX that users look for in ``oneflow``, and what there is instead."""

from __future__ import annotations

from collections.abc import Mapping

_BLOB = "arrays of numpy, which are fed to jobs; inside a job, blobs"
_PREDICT = 'a job of type "predict" with the same layer names'
_FUNCTION = "a Python function that calls layers, such as flow.layers.dense(x, units)"
_CONV = "flow.layers.conv2d(x, filters, kernel_size)"
_DENSE = "flow.layers.dense(x, units)"
_NORM = "flow.layers.batch_normalization(x)"
_LOSS = "flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)"
_SEED = "random_seed= of initializers and seed= of random ops; runs are equal by default"

COUNTERPARTS: Mapping[str, Mapping[str, str]] = {
    "oneflow": {
        "Adam": "flow.optimizer.Adam(rate).minimize(loss)",
        "Model": _FUNCTION,
        "Module": _FUNCTION,
        "SGD": "flow.optimizer.SGD(rate).minimize(loss)",
        "Sequential": _FUNCTION,
        "Tensor": _BLOB,
        "Variable": "flow.get_variable(name, shape)",
        "arange": "flow.range(start, limit, delta)",
        "autograd": "flow.optimizer.SGD(rate).minimize(loss), which differentiates",
        "cat": "flow.concat(blobs, axis)",
        "compile": "@flow.global_function: the first call of a job compiles it",
        "cuda": 'flow.scope.placement("gpu", "0:0")',
        "device": 'flow.scope.placement("cpu", "0:0")',
        "einops": "flow.einsum, flow.reshape and flow.transpose",
        "from_numpy": _BLOB,
        "full": "flow.constant(value, dtype, shape)",
        "grad": "flow.optimizer.SGD(rate).minimize(loss), or flow.watch_diff to observe gradients",
        "jit": "@flow.global_function: the first call of a job compiles it",
        "linspace": "flow.range(count) * step + start",
        "load": "flow.checkpoint.get(path) and flow.load_variables(values)",
        "manual_seed": _SEED,
        "mm": "flow.matmul(a, b)",
        "no_grad": _PREDICT,
        "optim": "flow.optimizer",
        "permute": "flow.transpose(blob, axes)",
        "pmap": "flow.scope.placement with several devices",
        "rand": "flow.random.bernoulli, or arrays of numpy.random, which are fed",
        "randn": "flow.random_normal_initializer(), or arrays of numpy.random, which are fed",
        "save": "flow.checkpoint.save(path)",
        "set_seed": _SEED,
        "tensor": _BLOB,
        "unsqueeze": "flow.expand_dims(blob, axis)",
        "utils": "flow.data.batches(dataset, batch_size) for torch.utils.data.DataLoader",
        "vmap": "the leading axis: ops take batches",
    },
    "oneflow.nn": {
        "BatchNorm1d": _NORM,
        "BatchNorm2d": _NORM,
        "Conv2d": _CONV,
        "CrossEntropyLoss": _LOSS,
        "Dropout": "flow.nn.dropout(x, rate=0.5)",
        "Embedding": "flow.layers.embedding(ids, count, size)",
        "Flatten": "flow.flatten(x, start_dim=1)",
        "GELU": "flow.math.gelu(x)",
        "Identity": "the blob itself",
        "LayerNorm": "flow.layers.layer_norm(x)",
        "Linear": _DENSE,
        "MaxPool2d": "flow.nn.max_pool2d(x, ksize, strides, padding)",
        "AvgPool2d": "flow.nn.avg_pool2d(x, ksize, strides, padding)",
        "ModuleList": "a list of functions, and a loop over it",
        "Parameter": "flow.get_variable(name, shape)",
        "ReLU": "flow.nn.relu(x)",
        "Sequential": _FUNCTION,
        "Sigmoid": "flow.math.sigmoid(x)",
        "Softmax": "flow.nn.softmax(x)",
        "Tanh": "flow.math.tanh(x)",
        "cross_entropy": _LOSS,
        "functional": "the functions of flow.nn itself, such as flow.nn.relu(x)",
        "init": "initializers, such as flow.xavier_uniform_initializer()",
        "linear": _DENSE,
        "mse_loss": "flow.nn.MSELoss(input, target)",
        "utils": "flow.optimizer.grad_clipping.by_global_norm(norm)",
    },
    "oneflow.layers": {
        "BatchNormalization": _NORM,
        "Conv2D": _CONV,
        "Dense": _DENSE,
        "Dropout": "flow.nn.dropout(x, rate=0.5)",
        "Embedding": "flow.layers.embedding(ids, count, size)",
        "Flatten": "flow.flatten(x, start_dim=1)",
        "Input": "a parameter of the job, such as tp.Numpy.Placeholder((32, 784))",
        "LayerNormalization": "flow.layers.layer_norm(x)",
        "Linear": _DENSE,
        "MaxPooling2D": "flow.nn.max_pool2d(x, ksize, strides, padding)",
        "linear": _DENSE,
    },
    "oneflow.keras": {
        "Input": "a parameter of the job, such as tp.Numpy.Placeholder((32, 784))",
        "Model": _FUNCTION,
        "Sequential": _FUNCTION,
        "layers": "flow.layers and flow.nn",
        "losses": "flow.nn",
        "models": _FUNCTION,
        "optimizers": "flow.optimizer",
    },
    "oneflow.optimizer": {
        "RMSprop": "flow.optimizer.RMSProp(rate)",
        "lr_scheduler": "schedules, such as flow.optimizer.CosineScheduler(rate, steps)",
    },
}
"""For each module of the facade: names that it does not have, and what there is instead."""
