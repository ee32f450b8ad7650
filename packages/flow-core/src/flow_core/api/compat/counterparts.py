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
_ADAM = "flow.optimizer.Adam(rate)"
_ATTENTION = "flow.layers.multi_head_attention(x, num_heads)"
_BATCHES = "flow.data.batches((x, y), batch_size=32)"
_CALLBACKS = "callbacks of flow_fit.fit, such as flow_fit.EarlyStopping()"
_DEVICES = "flow.scope.placement with several devices, over which batches are split"
_FIT = "flow_fit.fit(job, batches, epochs), or a loop that calls the job"
_RATES = "schedules, such as flow.optimizer.CosineScheduler(rate, steps)"
_SEED = "random_seed= of initializers and seed= of random ops; runs are equal by default"

COUNTERPARTS: Mapping[str, Mapping[str, str]] = {
    "oneflow": {
        "Adam": "flow.optimizer.Adam(rate).minimize(loss)",
        "DataLoader": _BATCHES,
        "Dataset": _BATCHES,
        "GradientTape": "flow.optimizer.SGD(rate).minimize(loss), which differentiates",
        "Model": _FUNCTION,
        "Module": _FUNCTION,
        "SGD": "flow.optimizer.SGD(rate).minimize(loss)",
        "Sequential": _FUNCTION,
        "Tensor": _BLOB,
        "Variable": "flow.get_variable(name, shape)",
        "arange": "flow.range(start, limit, delta)",
        "autograd": "flow.optimizer.SGD(rate).minimize(loss), which differentiates",
        "backward": "flow.optimizer.SGD(rate).minimize(loss), which differentiates",
        "callbacks": _CALLBACKS,
        "cat": "flow.concat(blobs, axis)",
        "compile": "@flow.global_function: the first call of a job compiles it",
        "cuda": 'flow.scope.placement("gpu", "0:0")',
        "device": 'flow.scope.placement("cpu", "0:0")',
        "einops": "flow.einsum, flow.reshape and flow.transpose",
        "fit": _FIT,
        "from_numpy": _BLOB,
        "full": "flow.constant(value, dtype, shape)",
        "grad": "flow.optimizer.SGD(rate).minimize(loss), or flow.watch_diff to observe gradients",
        "is_tensor": "isinstance(x, flow.BlobDef)",
        "jit": "@flow.global_function: the first call of a job compiles it",
        "linspace": "flow.range(count) * step + start",
        "load": "flow.checkpoint.get(path) and flow.load_variables(values)",
        "lr_scheduler": _RATES,
        "manual_seed": _SEED,
        "metrics": "flow_fit.Accuracy, flow_fit.AUC and flow_fit.Mean",
        "mm": "flow.matmul(a, b)",
        "models": "the networks of flow_zoo, such as flow_zoo.resnet18",
        "no_grad": _PREDICT,
        "optim": "flow.optimizer",
        "permute": "flow.transpose(blob, axes)",
        "pmap": "flow.scope.placement with several devices",
        "rand": "flow.random.uniform(shape)",
        "randint": "flow.random.integers(low, high, shape)",
        "randn": "flow.random.normal(shape)",
        "save": "flow.checkpoint.save(path)",
        "set_seed": _SEED,
        "tensor": _BLOB,
        "unsqueeze": "flow.expand_dims(blob, axis)",
        "utils": _BATCHES,
        "vmap": "the leading axis: ops take batches",
    },
    "oneflow.nn": {
        "AdaptiveAvgPool2d": "flow.math.reduce_mean(x, [2, 3], keepdims=True) for size 1",
        "AvgPool2d": "flow.nn.avg_pool2d(x, ksize, strides, padding)",
        "BatchNorm1d": _NORM,
        "BatchNorm2d": _NORM,
        "Conv1d": "flow.layers.conv1d(x, filters, kernel_size)",
        "Conv2d": _CONV,
        "Conv3d": "flow.layers.conv3d(x, filters, kernel_size)",
        "ConvTranspose2d": "flow.nn.conv2d_transpose(x, filter, output_shape)",
        "CrossEntropyLoss": _LOSS,
        "DataParallel": _DEVICES,
        "Dropout": "flow.nn.dropout(x, rate=0.5)",
        "Embedding": "flow.layers.embedding(ids, count, size)",
        "Flatten": "flow.flatten(x, start_dim=1)",
        "GELU": "flow.math.gelu(x)",
        "GRU": "flow.layers.gru(x, units)",
        "Identity": "the blob itself",
        "LSTM": "flow.layers.lstm(x, units)",
        "LayerNorm": "flow.layers.layer_norm(x)",
        "Linear": _DENSE,
        "MaxPool2d": "flow.nn.max_pool2d(x, ksize, strides, padding)",
        "ModuleList": "a list of functions, and a loop over it",
        "MultiheadAttention": _ATTENTION,
        "Parameter": "flow.get_variable(name, shape)",
        "RMSNorm": "flow.layers.rms_norm(x)",
        "ReLU": "flow.nn.relu(x)",
        "Sequential": _FUNCTION,
        "SiLU": "flow.nn.swish(x)",
        "Sigmoid": "flow.math.sigmoid(x)",
        "Softmax": "flow.nn.softmax(x)",
        "Tanh": "flow.math.tanh(x)",
        "Transformer": _ATTENTION,
        "TransformerEncoderLayer": _ATTENTION,
        "cross_entropy": _LOSS,
        "functional": "the functions of flow.nn itself, such as flow.nn.relu(x)",
        "init": "initializers, such as flow.xavier_uniform_initializer()",
        "linear": _DENSE,
        "mse_loss": "flow.nn.MSELoss(input, target)",
        "parallel": _DEVICES,
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
        "applications": "the networks of flow_zoo, such as flow_zoo.resnet18",
        "callbacks": _CALLBACKS,
        "datasets": "flow.data.datasets",
        "layers": "flow.layers and flow.nn",
        "losses": "flow.nn",
        "metrics": "flow_fit.Accuracy, flow_fit.AUC and flow_fit.Mean",
        "models": _FUNCTION,
        "optimizers": "flow.optimizer",
    },
    "oneflow.optimizer": {
        "AdamOptimizer": _ADAM,
        "CosineAnnealingLR": "flow.optimizer.CosineScheduler(rate, steps)",
        "LambdaLR": "flow.optimizer.CustomScheduler(lbn)",
        "RMSprop": "flow.optimizer.RMSProp(rate)",
        "ReduceLROnPlateau": "flow_fit.ReduceOnPlateau(rate)",
        "StepLR": "flow.optimizer.PiecewiseScalingScheduler(rate, steps, factor)",
        "lr_scheduler": "schedules, such as flow.optimizer.CosineScheduler(rate, steps)",
        "schedules": _RATES,
    },
    "oneflow.data": {
        "DataLoader": _BATCHES,
        "Dataset": _BATCHES,
        "TensorDataset": _BATCHES,
        "ImageFolder": "flow.data.image_folder_reader(folder, batch_size)",
    },
    "oneflow.losses": {
        "CrossEntropyLoss": _LOSS,
        "SparseCategoricalCrossentropy": _LOSS,
        "MeanSquaredError": "flow.nn.MSELoss(input, target)",
    },
    "oneflow.train": {"Adam": _ADAM, "Optimizer": "flow.optimizer"},
    "oneflow.distributed": {
        "init_process_group": "`flow launch`, which starts the processes: a script does not"
    },
    "oneflow.summary": {
        "SummaryWriter": "flow.summary.create_summary_writer(logdir), or flow_fit.TensorBoard"
    },
    "oneflow.onnx": {"save": "flow.onnx.export(job, checkpoint, path)"},
}
"""For each module of the facade: names that it does not have, and what there is instead."""
