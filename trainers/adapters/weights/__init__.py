"""Methods that change the weights of a base, or add to them."""
