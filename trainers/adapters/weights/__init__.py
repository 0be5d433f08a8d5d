"""Methods that train weights of the base, or matrices and vectors that change them."""
