"""The knowledge of launchers, libraries, drivers, fabrics and EESSI: each fact once, as data."""
