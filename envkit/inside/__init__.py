"""All that runs in a foreign interpreter: each file a program, mostly the standard library on Python 3.6 or later.

CONTRIBUTING says which of them need more.
"""
