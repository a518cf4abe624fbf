"""Training scripts that need no envkit, their data, and the timeline that Horovod writes of them."""
