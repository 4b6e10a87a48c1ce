"""One official format a file; every file registers its datasets."""
