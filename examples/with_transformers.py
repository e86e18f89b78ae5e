"""transformers.Trainer: a callback in the trainer.

torchrun --nproc-per-node 2 examples/with_transformers.py
commprof report commprof-trace
"""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from commprof.capture.integrations.transformers import CommprofCallback


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Short sequences of tokens, each with a label."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 8) % 60
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": torch.tensor(index % 2),
        }


def main() -> None:
    config = BertConfig(
        vocab_size=60,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=16,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir="checkpoints",
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=4,
            num_train_epochs=1,
            save_strategy="no",
        ),
        train_dataset=Sentences(),
    )
    trainer.add_callback(CommprofCallback(trainer))  # traces go to commprof-trace
    trainer.train()


if __name__ == "__main__":
    main()
