"""Lightning: a callback in the Trainer.

python examples/with_lightning.py
commprof report commprof-trace
"""

import pytorch_lightning as pl  # or: import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from commprof.capture.integrations.lightning import CommprofCallback


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.layers(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    pl.seed_everything(0)
    data = TensorDataset(torch.randn(640, 32), torch.randint(0, 4, (640,)))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        enable_checkpointing=False,
        callbacks=[CommprofCallback()],  # traces go to commprof-trace
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=16))


if __name__ == "__main__":
    main()
