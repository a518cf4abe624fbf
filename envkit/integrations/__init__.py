"""envkit in other tools: a plugin of pytest, tests for ReFrame."""
