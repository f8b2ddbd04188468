"""Low-rank adapters on transformers' NemotronH, by PEFT."""
