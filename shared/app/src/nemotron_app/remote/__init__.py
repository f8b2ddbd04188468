"""`--run`, `--batch` and `--stage`: the same steps as jobs of a machine that env.toml describes."""
