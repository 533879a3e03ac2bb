"""The parts of an Open Data Contract Standard document, each read into what it means here."""
