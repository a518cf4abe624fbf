"""Print the largest difference between two files of weights, and the largest weight: compare.py FILE FILE"""

import sys

import numpy as np

one, other = (np.load(path) for path in sys.argv[1:])
assert one.files == other.files and one.files
print(max(float(abs(one[name] - other[name]).max()) for name in one.files))
print(max(float(abs(one[name]).max()) for name in one.files))
