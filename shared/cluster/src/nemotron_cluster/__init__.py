"""Where the stages run besides this machine."""
