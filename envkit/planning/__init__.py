"""Finding out what can be installed, what was asked for, and what would stop it, before anything is done."""
