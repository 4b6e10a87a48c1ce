"""What attention did in a forward pass, seen from outside."""
