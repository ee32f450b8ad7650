#!/usr/bin/env bash
# lightning 2.6.6 and accelerate 1.15.0: if the batches of an epoch are no multiple of the batches whose gradients are
# accumulated, the last step of each epoch has fewer of them, and their sum is divided by the full number all the same.  Its
# gradient is too small by that ratio.  The step is meant to be that of one large batch.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0, ten batches, each with the gradient 1, accumulated by 4: the gradients
# of the three steps of an epoch are 1, 1 and 0.5 in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" HF_HUB_OFFLINE=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q lightning==2.6.6 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - << 'EOF'
import lightning
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

batches = DataLoader(TensorDataset(torch.ones(10, 1)), batch_size=1)


class Module(lightning.LightningModule):
    """One weight, whose gradient for each batch is 1."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1, bias=False), []

    def training_step(self, batch, index):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(self.layer.weight.grad.item())


quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
module = Module()
lightning.Trainer(accelerator="cpu", max_epochs=2, accumulate_grad_batches=4, **quiet).fit(module, batches)
print("lightning", module.seen)
assert module.seen == [1, 1, 0.5] * 2

layer, seen = torch.nn.Linear(1, 1, bias=False), []
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
layer, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1), batches)
for _ in range(2):
    for (x,) in loader:
        with accelerator.accumulate(layer):
            accelerator.backward(layer(x).mean())
            if accelerator.sync_gradients:
                seen.append(layer.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
print("accelerate", seen)
assert seen == [1, 1, 0.5] * 2
EOF
echo "as described"
