"""`nemotron check`: compare a run with the expectations of a healthy one, which are stored with its recipe."""
