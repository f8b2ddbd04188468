"""Code shared by the four Nemotron stages."""
