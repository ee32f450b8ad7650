#!/usr/bin/env bash
# torch 2.13.0, CPU: `torch.utils.checkpoint` runs the forward pass a second time for the gradients, and BatchNorm takes two
# steps of its running statistics per batch, which is a momentum of 0.19 instead of 0.1.  Checkpointing is meant to trade time
# for memory only: it restores the random numbers of dropout for this.  The gradients are the same, but the statistics are
# those of the evaluation.
#
# Seen on 2026-12-01, x86-64, Python 3.11, inputs with the mean 1 in one training step: a running mean of 0.1 and one batch
# without checkpoint, 0.19 and two batches with it, `use_reentrant` or not; the same gradient of the weight.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - << 'EOF'
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

x = torch.tensor([[0.0], [2.0], [1.0], [1.0]])
weights, seen = torch.tensor([[1.0], [2.0], [-3.0], [0.5]]), {}


def step(**options):
    """Take a forward and a backward pass; return the layer's gradient, running mean and number of batches."""
    layer = nn.BatchNorm1d(1)
    own = x.clone().requires_grad_()
    y = checkpoint(layer, own, **options) if options else layer(own)
    (y * weights).sum().backward()
    return layer.weight.grad.item(), round(layer.running_mean.item(), 4), layer.num_batches_tracked.item()


plain = step()
again = [step(use_reentrant=reentrant) for reentrant in (False, True)]
print("gradient, running mean and batches:", plain, "with checkpoint:", again)
assert plain[1:] == (0.1, 1)
assert again == [(plain[0], 0.19, 2)] * 2
EOF
echo "as described"
