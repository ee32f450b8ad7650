"""Takes the name of one of core's commands, and has nothing good to say."""

FLOW_PLUGIN_API = "1.0"


def flow_register_commands(cli):
    @cli.command()
    def doctor():
        pass


def flow_doctor():
    raise ValueError("nothing good to say")
