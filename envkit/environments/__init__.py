"""Where environments lie, how each is entered, and what is written down of it."""
