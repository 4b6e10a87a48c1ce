"""Losses on class attention maps in a few launches; the plain form is in :mod:`foveal.supervise.separability`."""
