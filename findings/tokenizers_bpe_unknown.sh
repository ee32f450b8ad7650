#!/usr/bin/env bash
# tokenizers 0.23.3: a BPE model without `unk_token`, which is the default, drops what its vocabulary lacks, without an error.
# This holds for models on bytes, too, if the trainer does not get `initial_alphabet=ByteLevel.alphabet()`: only bytes of the
# training text are in the vocabulary.  WordLevel and Unigram models raise an error instead.
#
# Seen on 2026-12-01, x86-64, Python 3.11, models trained on "hello world": "héllo 日本" decodes to "hllo ", and to itself
# with the alphabet; "Missing [UNK] token from the vocabulary"; "Encountered an unknown token but `unk_id` is missing".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder" HF_HUB_OFFLINE=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tokenizers==0.23.3
"$folder/venv/bin/python" - << 'EOF'
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = "héllo 日本"


def through(**options):
    """Train a model on bytes, encode a text and decode it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(["hello world"], trainers.BpeTrainer(vocab_size=300, show_progress=False, **options))
    return made.decode(made.encode(TEXT).ids)


def refused(model):
    """Return the error of a model for a text that it does not know."""
    made = Tokenizer(model)
    try:
        return made.encode("axb").tokens
    except Exception as error:
        return str(error)


seen = through(), through(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
others = refused(models.WordLevel({"a": 0})), refused(models.Unigram([("a", -1.0), ("b", -1.0)]))
print(seen, others)
assert seen == ("hllo ", TEXT)
assert "Missing [UNK] token" in others[0] and "unknown token" in others[1]
EOF
echo "as described"
