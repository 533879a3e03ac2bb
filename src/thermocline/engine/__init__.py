"""Where work runs. Each engine is lazy: importing this room starts nothing."""
