"""`--run`, `--batch` and `--stage`: run the same steps as jobs on a machine that env.toml describes."""
