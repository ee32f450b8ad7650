#!/usr/bin/env bash
# torchmetrics 1.9.0: metrics of binary tasks apply the sigmoid to the scores of a batch if one of them lies outside of 0 to 1, as
# documented, so that the result for logits depends on the size of the batches: a batch whose logits happen to lie inside is
# compared as probabilities.  And the sigmoid of float32 logits above 17 is 1, so that scores which rank all samples right have
# the area under the curve of a guess; in float64 they have 1.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0: logits 0.4, 0.3, 2, -1 with targets 0, 0, 1, 0 have the accuracy 0.5 in
# one batch, and 1 in two; the logits 20, 30, 40, 50 with targets 0, 0, 1, 1 have the area 0.5, in float64 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import torch
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

logits, targets = torch.tensor([0.4, 0.3, 2, -1]), torch.tensor([0, 0, 1, 0])
seen = {}
for size in (4, 2, 1):
    metric = BinaryAccuracy()
    for x, y in zip(logits.split(size), targets.split(size)):
        metric.update(x, y)
    seen[size] = metric.compute().item()
print("accuracy by size of the batches:", seen)
assert seen == {4: 0.5, 2: 1, 1: 1}
logits, targets = torch.tensor([20.0, 30, 40, 50]), torch.tensor([0, 0, 1, 1])
print("areas:", areas := [BinaryAUROC()(x, targets).item() for x in (logits, logits.double(), logits - 35)])
assert areas == [0.5, 1, 1]
EOF
echo "as described"
