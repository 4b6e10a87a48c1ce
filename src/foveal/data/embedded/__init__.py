"""One generated dataset a file; none needs a download."""
