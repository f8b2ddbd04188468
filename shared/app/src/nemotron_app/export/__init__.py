"""What `nemotron export` writes: a model as a folder that stands by itself, with a card that says what it is."""
