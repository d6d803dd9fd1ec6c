"""Background work of the engine: takes on edges that fell behind, large invalidations, and whatever was stranded."""
