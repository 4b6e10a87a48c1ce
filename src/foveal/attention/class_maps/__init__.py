"""Class attention maps of any classifier: ``cam``, and the layers it taps."""
