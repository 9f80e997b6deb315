# %% [markdown]
# A small sweep, cell by cell: who keeps the gain of placement when the pool gets tight?
#
# Runs as a script (`python examples/sweep.py`) and as a notebook in any editor that knows `# %%` cells.
# It needs `pimkv` alone; with matplotlib (`pip install "pimkv[report]"`) it also draws a figure.

# %%
import sys
from pathlib import Path

import pimkv

# %% [markdown]
# A spec is a base config and axes over any of its fields. The same tables as TOML in a file are what
# `pimkv sweep FILE.toml` takes.

# %%
HEADROOMS = [0.6, 0.8, 1.0, 1.3]
ALLOCATORS = ["paged", "pim-aware", "pim-gather"]

sweep = pimkv.load_sweep(
    {
        "base": {"workload.requests": 200, "scheduler.admission": "vllm"},
        "grid": {"allocator.kind": ALLOCATORS, "scheduler.headroom": HEADROOMS},
    }
)
print(f"{len(sweep.configs)} points over {', '.join(sweep.axes)}")

# %% [markdown]
# In a script that uses more than one process the call stands under `if __name__ == "__main__":`; here one is
# enough. With `store="headroom.db"` every point is kept, and a second call runs only what is missing.

# %%
result = pimkv.run_sweep(sweep, jobs=1)
table = result.columns()

# %%
bandwidth = {
    (kind, headroom): gbps
    for kind, headroom, gbps in zip(
        table["config.allocator.kind"],
        table["config.scheduler.headroom"],
        table["exact.controller_gbps"],
        strict=True,
    )
}
print("\ncontroller bandwidth, GB/s")
print("headroom  " + "".join(f"{kind:>12}" for kind in ALLOCATORS))
for headroom in HEADROOMS:
    print(f"{headroom:>8}  " + "".join(f"{bandwidth[kind, headroom]:>12,.1f}" for kind in ALLOCATORS))

# %% [markdown]
# The figure goes to the folder named on the command line, or the current one.

# %%
try:
    import matplotlib
except ImportError:
    print("\nno figure: matplotlib is not installed")
else:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    for kind in ALLOCATORS:
        axes.plot(HEADROOMS, [bandwidth[kind, headroom] for headroom in HEADROOMS], marker="o", label=kind)
    axes.set(xlabel="pool over what the batch needs", ylabel="controller bandwidth, GB/s", ylim=(0, None))
    axes.legend()
    path = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "headroom.png"
    figure.savefig(path, dpi=150)
    print(f"\nfigure: {path}")
