"""Finding and following faces, and networks that recognise them."""
