"""What a model template finds by `import rafiki` or `import singa_auto`; no other code has this folder in its path."""
