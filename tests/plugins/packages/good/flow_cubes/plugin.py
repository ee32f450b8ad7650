"""What the package registers; imports no kernel."""

from flow_core.authoring.specs import Available, DeviceSpec, KernelSpec, OpSpec, Sample
from flow_core.base.config import Settings

FLOW_PLUGIN_API = "1.0"


def infer(ctx):
    ctx.check(ctx.inputs[0].dtype.is_floating, f"input of type {ctx.inputs[0]}", "a floating type")
    return ctx.inputs


def gradient(g):
    return (g.dy * g.x * g.x * 3,)


def samples(rng):
    yield Sample((rng.uniform(-2, 2, (3, 5)),))


def flow_register_ops():
    return [
        OpSpec(
            "cube",
            inputs=("x",),
            infer=infer,
            gradient=gradient,
            reference=lambda x: x**3,
            samples=samples,
            elementwise=True,
        )
    ]


def flow_register_kernels():
    return [KernelSpec("cube", "cpu", "flow_cubes.kernels:bind", name="cubes.cube")]


def flow_register_devices(config: Settings):
    driver = "flow_core.builtin.numpy_driver:NumpyDriver"
    return [DeviceSpec("cubes", lambda: Available(3, "made of cubes"), driver, kernels="cpu")]


def flow_register_commands(cli):
    import click

    @cli.command()
    @click.argument("number", type=int)
    def cube(number):
        """The cube of NUMBER."""
        click.echo(number**3)


def flow_doctor():
    return ["27 is a cube"]
