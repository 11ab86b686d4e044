"""What the commands run: small experiments, their tables and their pictures."""
