"""The command `thermo`: a thin face of the Python API. Nothing can be done only from here."""
