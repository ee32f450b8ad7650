#!/usr/bin/env bash
# torcheval 0.0.7: `hit_rate`, `reciprocal_rank` and the top-k `multiclass_accuracy` rank the target by the number of greater scores:
# a model that gives all classes the same score, or NaN, is right every time.  So a network that has diverged, or whose outputs
# saturate, looks perfect.  scikit-learn's `top_k_accuracy_score` counts one of three for equal scores, as torcheval does for
# k = 1.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0, scikit-learn 1.9.1, numpy 2.4.6, three samples of three classes, for
# scores 0.5 and for NaN: hit rate, reciprocal rank and the accuracy of the top two are 1, that of the top one is 0.333.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torcheval==0.0.7 torch==2.13.0 scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import torch
from sklearn.metrics import top_k_accuracy_score
from torcheval.metrics.functional import hit_rate, multiclass_accuracy, reciprocal_rank

targets = torch.tensor([0, 1, 2])
for name, scores in (("equal", torch.full((3, 3), 0.5)), ("NaN", torch.full((3, 3), torch.nan))):
    seen = {
        "hit_rate": hit_rate(scores, targets, k=1).mean().item(),
        "reciprocal_rank": reciprocal_rank(scores, targets).mean().item(),
        "top 2": multiclass_accuracy(scores, targets, k=2).item(),
        "top 1": multiclass_accuracy(scores, targets).item(),
    }
    print(name, seen)
    assert [round(x, 3) for x in seen.values()] == [1, 1, 1, 0.333]
other = top_k_accuracy_score(targets.numpy(), torch.full((3, 3), 0.5).numpy(), k=1)
print("scikit-learn, top 1, equal", other)
assert round(other, 3) == 0.333
EOF
echo "as described"
