"""What `import nemotron` gives."""
