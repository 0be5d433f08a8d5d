"""Methods that train weights of the base, or train matrices and vectors that modify them."""
