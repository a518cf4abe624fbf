"""All that runs in a foreign interpreter: each file a program, standard library only, Python 3.6 or later."""
