#!/usr/bin/env bash
# torchmetrics 1.9.0 and torcheval 0.0.7: `R2Score` loses the digits of targets by cancellation in float32, and torcheval's those
# of float64, too.  For targets whose mean is large beside their deviation, such as years, kelvins or prices, the
# score is any number, without a warning.  scikit-learn, which subtracts the mean first, is right in float32, too.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0, scikit-learn 1.9.1, targets 10000 to 10004 and predictions that are
# 0.5 more: 0.875 by scikit-learn; by torchmetrics 0.875 in float64, 0 in float32; by torcheval -infinity in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torcheval==0.0.7 torch==2.13.0 scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import torch
import torcheval.metrics
import torchmetrics
from sklearn.metrics import r2_score


def scores(targets):
    """Return the scores of predictions that are 0.5 too large."""
    found = {}
    for package in (torchmetrics, torcheval.metrics):
        metric = package.R2Score()
        metric.update(targets + 0.5, targets)
        found[package.__name__] = metric.compute().item()
    return found | {"scikit-learn": r2_score(targets.numpy(), (targets + 0.5).numpy())}


for dtype, right in ((torch.float64, 0.875), (torch.float32, 0)):
    print(dtype, "0 to 4", near := scores(torch.arange(5, dtype=dtype)))
    assert [*near.values()] == [0.875] * 3
    print(dtype, "10000 to 10004", far := scores(torch.arange(10000, 10005, dtype=dtype)))
    assert [*far.values()] == [right, -torch.inf, 0.875]
EOF
echo "as described"
