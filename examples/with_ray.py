"""Ray Train: each worker records its own training loop.

python examples/with_ray.py
commprof report commprof-trace
"""

from pathlib import Path

import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import commprof


def train(config: dict[str, str]) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(640, 32), torch.randint(0, 4, (640,)))
    loader = prepare_data_loader(DataLoader(data, batch_size=16, shuffle=True))
    ddp = prepare_model(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4)))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    with commprof.profile(config["traces"]) as prof:
        commprof.attach(ddp)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
            prof.step()  # ends a step


def main() -> None:
    # Workers run in another directory. On a cluster, give a directory that all hosts share.
    here = Path.cwd()
    TorchTrainer(
        train,
        train_loop_config={"traces": str(here / "commprof-trace")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(here / "ray-results")),
    ).fit()


if __name__ == "__main__":
    main()
