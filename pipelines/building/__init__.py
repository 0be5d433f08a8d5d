"""Building: plan -> for each step: published already? skip it : run it, then publish it.

read_step   groups of files -> parts of documents                one task per group
annotate    part + part stages that can run together -> columns  one task per part
build       corpus stages, which have barriers of their own; the order of all steps
publish     manifest of the corpus, report
"""
