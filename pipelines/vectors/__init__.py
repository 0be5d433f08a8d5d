"""Static word vectors: trained on the text of a corpus, queried, aligned with another space, compared with another corpus.

corpus -> corpus_words -> fastText -> vectors.txt -> neighbours, analogies
                                           |
          other vectors.txt -> orthogonal map -> alignment, moved words
"""
