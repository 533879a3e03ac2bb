"""The shop's imaginary source system: what it holds, how it changes, how it lands as files."""
