#!/usr/bin/env bash
# transformers 4.57.6: `generate` with `repetition_penalty` counts the padding of a batch as tokens that were said.  Where
# sequences are padded with the token that ends them, as is usual for models without a padding token, its probability is reduced
# in the shorter rows only: they go on where the same prompt alone ends.  `attention_mask` hides the padding from the model, so
# that a result otherwise does not depend on the other rows.
#
# Seen on 2026-12-01, x86-64, Python 3.11, torch 2.13.0, 40 small Llama models with random weights, greedy, a prompt of two
# tokens alone and padded beside one of five: the same tokens in all 40 without a penalty; with 1.3, seven differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" HF_HUB_OFFLINE=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==4.57.6 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - << 'EOF'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
END, LENGTH = 0, 8
sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(**sizes, eos_token_id=END, pad_token_id=END, bos_token_id=None)
alone = torch.tensor([[3, 5]])
padded = torch.tensor([[END, END, END, 3, 5], [1, 2, 3, 4, 5]])


def generated(model, tokens, **options):
    """Return the new tokens of the first row, as many as the others have."""
    mask = (tokens != END).long()
    found = model.generate(tokens, attention_mask=mask, max_new_tokens=LENGTH, do_sample=False, **options)
    new = found[0, tokens.shape[1] :].tolist()
    return new + [END] * (LENGTH - len(new))


seen = {"none": 0, "penalty": 0}
for seed in range(40):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(10)
    for name, options in (("none", {}), ("penalty", {"repetition_penalty": 1.3})):
        one, other = generated(model, alone, **options), generated(model, padded, **options)
        seen[name] += one != other
        if one != other:
            print(f"seed {seed}, {name}: alone {one}, padded {other}")
print("models whose tokens differ:", seen)
assert seen == {"none": 0, "penalty": 7}
EOF
echo "as described"
