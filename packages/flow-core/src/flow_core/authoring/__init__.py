"""The public API for authors of ops, passes and backends; import from its submodules.

In: the records, protocols and helpers of the lower layers. Out: one stable place to import from.
This package must not depend on the compiler, the runtime or the frontend; testing kits are
`flow_core.testing`.

* `flow_core.authoring.specs`: the records that plugin hooks return, graphs and element types;
* `flow_core.authoring.op_rules`: inference and SBP rules for ops;
* `flow_core.authoring.gradients`: helpers for gradient rules;
* `flow_core.authoring.backends`: protocols for drivers and communication backends;
* `flow_core.authoring.pass_api`: passes and the graph rewriter;
* `flow_core.authoring.layouts`: conversion to channels-last layouts;
* `flow_core.authoring.collectives`: gather plans of collectives;
* `flow_core.authoring.update_rules`: the rules for optimizer updates.
"""
