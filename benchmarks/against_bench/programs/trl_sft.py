"""Fine-tune a model on chats with TRL's trainer, as a user of TRL would write it.

python trl_sft.py MODEL CHATS.jsonl FOLDER STEPS ROWS MICRO_BATCH LENGTH all|lora
"""

import sys

import torch
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer


def main() -> None:
    model, chats, folder, steps, rows, micro_batch, length, weights = sys.argv[1:]
    torch.set_num_threads(1)
    settings = SFTConfig(
        output_dir=folder, max_steps=int(steps), per_device_train_batch_size=int(micro_batch),
        gradient_accumulation_steps=int(rows) // int(micro_batch), packing=True, max_length=int(length),
        learning_rate=1e-5, gradient_checkpointing=False, bf16=False, use_cpu=True, save_strategy="no",
        logging_steps=1, disable_tqdm=True, report_to="none",
    )  # fmt: skip
    trainer = SFTTrainer(
        model=model, args=settings,
        train_dataset=load_dataset("json", data_files=chats, split="train", cache_dir=f"{folder}/cache"),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear") if weights == "lora" else None,
    )  # fmt: skip
    trainer.train()
    trainer.save_model(folder)


if __name__ == "__main__":
    main()
