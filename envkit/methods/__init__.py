"""Which methods there are, and what any of them has installed."""
