"""`nemotron export`: write a model as a self-contained folder with a model card."""
