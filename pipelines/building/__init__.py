"""Building: run each step of a plan that is not published yet, and publish it.

read_step   groups of files -> parts of documents                one task per group
annotate    part + part stages that can run together -> columns  one task per part
build       runs all steps in order; runs corpus stages, which distribute their own tasks
publish     writes the manifest and the report of the corpus
"""
