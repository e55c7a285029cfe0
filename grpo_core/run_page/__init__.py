"""The page of a run, `index.html` in its folder: figures, curves and what the model wrote; one file, which needs no network."""
