"""Train a mixture of experts on one device and on a grid of 2 x 2 devices, with the same bits.

The tokens are of eight kinds, and each kind has a function of its own, which the network learns. A
gate sends each token to one of eight small networks, the experts. On the grid, each device has a
quarter of the tokens and two experts: rows go to the devices of their experts and back.
"""

import sys

import matplotlib as mpl
import numpy as np

import oneflow as flow
import oneflow.typing as tp

KINDS, EXPERTS, WIDTH, HIDDEN = 8, 8, 16, 16
SEQUENCES, LENGTH, STEPS = 16, 32, 300
PICTURE = "mixture_of_experts.png"
TOKENS = tp.Numpy.Placeholder((SEQUENCES, LENGTH, WIDTH))


def network(x, experts=EXPERTS, **where):
    return flow.layers.mixture_of_experts(
        x,
        experts,
        HIDDEN,
        capacity_factor=2.0,
        gate_dtype=flow.double,  # scores do not depend on the number of devices
        name="experts",
        **where,
    )


def train_job(experts=EXPERTS, hierarchy=None, **where):
    """Return a train job: the loss of each token, and the number of tokens without a slot."""

    @flow.global_function(type="train")
    def train(x: TOKENS, y: TOKENS) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", "0:0-3" if hierarchy else "0:0", hierarchy):
            if hierarchy:
                x = flow.hierarchical_parallel_cast(x, ["S(0)", "S(0)"])
            found, balance_loss, dropped = network(x, experts, **where)
            losses = flow.math.reduce_mean(flow.math.square(found - y), axis=-1)
            total = flow.math.reduce_mean(losses) + 0.01 * flow.cast(balance_loss, flow.float)
            flow.optimizer.Adam(1e-2, do_bias_correction=True).minimize(total)
        return losses, dropped

    return train


def batches():
    """Return the function of each kind as a matrix, and batches of tokens with their kinds."""
    rng = np.random.default_rng(0)
    functions = rng.normal(size=(KINDS, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    found = []
    for _ in range(STEPS):
        kinds = rng.integers(0, KINDS, (SEQUENCES, LENGTH))
        x = rng.normal(size=(SEQUENCES, LENGTH, WIDTH))
        x[..., :KINDS] = np.eye(KINDS)[kinds] * 3
        y = np.tanh(np.einsum("slw,slwv->slv", x, functions[kinds]))
        found.append((x.astype(np.float32), y.astype(np.float32), kinds))
    return found


def trained(job, data):
    """Return the losses of all tokens and the fraction of tokens without a slot, by step."""
    steps = [job(x, y) for x, y, _ in data]
    losses, dropped = (np.array(rows) for rows in zip(*steps, strict=True))
    return losses, dropped[:, 0] / (SEQUENCES * LENGTH)


def shares(x, kinds):
    """Return the fraction of the tokens of each kind whose score is highest for each expert."""
    gate = flow.get_all_variables()["experts-gate-weight"].numpy()
    chosen = np.argmax(x @ gate.T, -1)
    table = np.zeros((KINDS, EXPERTS))
    np.add.at(table, (kinds, chosen), 1)
    return table / table.sum(1, keepdims=True)


def draw(curves, table):
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 2.4), layout="constrained")
    for name, losses in curves.items():
        left.plot(losses.mean((1, 2)), label=name)
    left.set(xlabel="step", ylabel="mean squared error", yscale="log")
    left.legend()
    right.imshow(table, cmap="Blues", vmin=0, vmax=1)
    right.set(xlabel="expert", ylabel="kind", title="tokens by kind and expert")
    figure.savefig(PICTURE, dpi=80)


def main():
    data = batches()
    layouts = {
        "one device": {},
        "2 x 2, experts on all": {
            "hierarchy": (2, 2),
            "parallel_distribution": ["S(0)", "S(0)"],
        },
        "2 x 2, experts on an axis": {
            "hierarchy": (2, 2),
            "parallel_distribution": ["B", "S(0)"],
        },
        "one expert": {"experts": 1},
    }
    losses = {}
    for name, how in layouts.items():
        flow.clear_default_session()
        flow.config.cpu_device_num(4)
        job = train_job(**how)
        losses[name], dropped = trained(job, data)
        moved = sum("all_to_all" in transfer.steps for transfer in job.plan().ledger)
        last = losses[name][-20:].mean()
        print(
            f"{name:26} error {last:.4f}, {dropped[0]:.0%} to {dropped[-20:].mean():.1%} dropped,"
            f" {moved} all-to-all exchanges"
        )
        if name == "one device":
            table = shares(*data[-1][::2])
    one, everywhere, axis, alone = losses.values()
    draw({"eight experts": one, "one expert": alone}, table)
    same = np.array_equal(one, everywhere)
    print(f"experts on all devices: the losses of one device, bit for bit: {same}")
    apart = abs(axis - one)[:20].max()
    print(f"experts on an axis: losses of the first 20 steps differ by {apart:.0e} at most")
    better = one[-20:].mean() < alone[-20:].mean() / 2
    return 0 if same and better else 1


if __name__ == "__main__":
    sys.exit(main())
