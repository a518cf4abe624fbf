"""The probe, which runs inside an environment, once per rank: it states facts and judges nothing.

Standard library only, Python 3.6 or later. Run as `python PATH/TO/probe --help`; `rank.py` is where it begins.
"""
