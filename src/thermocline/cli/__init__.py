"""The command `thermo`: a thin layer over the Python API, with no features of its own."""
