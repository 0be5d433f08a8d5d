"""Score texts under decoders, encoders and encoder-decoders, and let these models write texts."""
