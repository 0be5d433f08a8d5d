"""Methods that train weights of the base, or what is added to them."""
