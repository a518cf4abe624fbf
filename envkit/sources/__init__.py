"""The parts of ``envkit.sources.fetch``: the cache, pip's configuration, the connection, the index, the bundle."""
