"""The command ``flow sizes``."""

import click


@click.command()
@click.option("--top", type=click.IntRange(min=1), help="List only the largest N variables.")
@click.argument("path", type=click.Path(exists=True))
def sizes(path, top):
    """List the variables of the checkpoint at PATH, the largest first."""
    import oneflow as flow

    found = flow.checkpoint.get(path)
    rows = []
    for name, variable in found.items():
        array = variable.numpy()
        shape = ",".join(map(str, array.shape)) or "-"
        rows.append((array.nbytes, name, str(array.dtype), shape))
    rows.sort(key=lambda row: (-row[0], row[1]))
    for nbytes, name, dtype, shape in rows[:top]:
        click.echo(f"{dtype:8} {shape:12} {nbytes:14,}  {name}")
    click.echo(f"{sum(row[0] for row in rows):,} bytes in {len(rows)} variables")
