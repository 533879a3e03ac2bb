"""Result rows: fetched within limits, in types that every engine has, and encoded once."""
