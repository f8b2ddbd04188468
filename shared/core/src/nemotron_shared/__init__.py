"""What the four Nemotron stages share."""
