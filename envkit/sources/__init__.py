"""The parts of ``envkit.fetch``: the cache, pip's configuration, the connection, the index, the bundle."""
