"""Static word vectors: train them on the text of a corpus, query them, and compare or align them with other
vectors.

corpus -> corpus_words -> fastText -> vectors.txt -> neighbours, analogies
                                           |
          other vectors.txt -> orthogonal map -> alignment, moved words
"""
