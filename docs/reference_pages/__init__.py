"""Generator of the site's sources: the pages of docs/ and a reference derived from the packages.

In: docs/, mkdocs.yml, the installed packages and the registry of their ops.  Out: a folder that
the site generator builds.  This package must not import the site generator.
"""
