"""Everything that reads a file, fed with real files that were damaged, and with what somebody made up."""
