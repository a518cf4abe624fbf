"""From what was asked for to an environment that has passed, and back: choosing, installing, listing, removing."""
