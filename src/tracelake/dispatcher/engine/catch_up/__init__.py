"""Background work of the engine: edges that fell behind, large invalidations, and repairs of stranded work."""
