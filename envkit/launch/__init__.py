"""From what is asked to the command line that starts the ranks, on the host or in an image."""
