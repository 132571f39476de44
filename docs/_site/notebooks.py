"""Tutorials: notebooks, run as the site is built, as pages. Nothing that they print is kept in the repository."""
def pages(root): return {}
