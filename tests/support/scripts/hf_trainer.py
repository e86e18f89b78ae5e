import sys

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.arange(index, index + 8) % 60,
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": torch.tensor(index % 2),
        }


def main() -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=60,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        seed=0,
    )
    loss = Trainer(model=model, args=arguments, train_dataset=Sentences()).train().training_loss
    sys.stdout.write(f"rank {dist.get_rank()} {loss.hex()}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
