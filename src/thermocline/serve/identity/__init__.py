"""Who asks: tokens, signed claims, and where they are kept."""
