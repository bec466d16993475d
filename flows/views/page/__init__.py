"""The page of a lineage: family tree, curve and table, drawn as SVG and HTML without a network."""
