"""Names that torch and Keras give to parameters, and their counterparts here."""

from __future__ import annotations

from collections.abc import Sequence

_SAME = tuple(
    line.split()
    for line in """
        x input inputs input_tensor input_blob tensor value values a data images self
        y other b target
        axis dim dims axes
        keepdims keepdim keep_dims
        lr_scheduler base_lr lr learning_rate
        filters out_channels num_filters
        units out_features output_dim hidden_size
        num_embeddings input_dim vocab_size vocabulary_size
        embedding_dim output_dim embedding_size
        num_heads n_heads nhead heads
        num_key_value_heads num_kv_heads n_kv_heads
        memory key_value context
        mask key_padding_mask attn_mask attention_mask
        causal is_causal use_causal_mask
        initial_state hx
        reverse go_backwards
        sizes split_size_or_sections split_size num_or_size_splits
        shift shifts
        ksize kernel_size pool_size window_size kernel
        strides stride
        dilations dilation_rate dilation
        padding paddings pad pads
        use_bias bias
        epsilon eps variance_epsilon
        beta1 beta_1
        beta2 beta_2
        momentum momentum_beta
        weight_decay decay
        decay_rate rho gamma alpha
        rate p prob dropout_rate
        data_format layout
        labels label target targets y_true
        logits prediction input y_pred
        kernel_initializer weight_initializer weight_init
        bias_initializer bias_init
        shape size sizes output_shape
        perm permutation dims axes
        trainable requires_grad
        training is_training train
        affine elementwise_affine
        negative_slope alpha
        min_value minval min low a
        max_value maxval max high b
        stddev std
        groups num_groups group
        values boundaries milestones
        steps total_steps decay_steps T_max
        random_shuffle shuffle
        batch_size batch
        reduction reduce
        diagonal k
        name op_name
    """.strip().splitlines()
)

_NOTES = (
    (
        "in_channels in_features num_features input_dim input_shape",
        "leave it out: the input's shape determines the size",
    ),
    ("betas", "pass the two numbers as beta1 and beta2"),
    ("keep_prob", "pass rate=1 - keep_prob"),
    ("training is_training", 'leave it out: jobs of type "train" train, others predict'),
    ("params parameters var_list", "limit an optimizer with variables=[...]; all by default"),
    ("device", "enter a flow.scope.placement"),
    ("inplace out", "leave it out: functions return a new blob"),
    ("schedule scheduler", "pass a scheduler of flow.optimizer as lr_scheduler"),
)


def advice(name: str, parameters: Sequence[str]) -> str | None:
    """Return a hint for the name of a parameter elsewhere, given the ones here; None if unknown.

    >>> advice("lr", ["lr_scheduler", "beta1"])
    'lr is lr_scheduler here'
    """
    for group in _SAME:
        if name in group:
            for other in group:
                if other in parameters:
                    return f"{name} is {other} here"
    notes = (note for names, note in _NOTES if name in names.split())
    note = next(notes, None)
    return note and f"{name}: {note}"
