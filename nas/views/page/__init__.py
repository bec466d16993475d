"""The page of a lineage: family tree, charts and table as one HTML file."""
