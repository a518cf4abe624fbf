"""Configuration files: what can be set in them, reading them, and what counts."""
