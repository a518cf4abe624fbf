"""Commands: parse, call, print. One module each."""
