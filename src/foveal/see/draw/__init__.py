"""Pictures of plain tensors, each drawn in one place: PIL images, and SVG where a page shows them."""
