"""The command that the plugin registers; flow imports click only if a command is run."""

FLOW_PLUGIN_API = "1.0"


def flow_register_commands(cli):
    """Add the command ``flow sizes``."""
    from flow_sizes.command import sizes

    cli.add_command(sizes)
