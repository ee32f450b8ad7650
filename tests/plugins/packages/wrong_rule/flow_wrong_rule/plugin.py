"""What the package registers."""

from flow_core.authoring.specs import B, KernelSpec, OpSpec, P, S, Signature, tensor_type

FLOW_PLUGIN_API = "1.0"


def columns(ctx):
    return (tensor_type(ctx.inputs[0].shape[1:], ctx.inputs[0].dtype),)


def same(ctx):
    return ctx.inputs


def rule(input_, output):
    return lambda ctx: (Signature((input_,), (output,)),)


OPS = {
    "shifted_sum": (columns, rule(S(0), P)),  # the one is added on every device
    "upside_down": (same, rule(S(0), S(0))),  # the first rows belong to the last device
    "column_sum": (columns, rule(S(0), B)),  # every device has a sum of its own
}


def flow_register_ops():
    return [OpSpec(name, ("x",), infer, sbp=sbp) for name, (infer, sbp) in OPS.items()]


def flow_register_kernels():
    return [KernelSpec(name, "cpu", f"flow_wrong_rule.kernels:{name}") for name in OPS]
