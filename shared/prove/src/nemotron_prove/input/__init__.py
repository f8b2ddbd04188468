"""Bad input: every parser of the project gets damaged files and words, and must take them, or refuse them in words."""
