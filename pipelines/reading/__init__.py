"""Read the files of a source into parts, which are tables of documents.

sources/    a source as the corpus file describes it, and the table of formats
entries/    files and globs -> members of archives -> decompressed bytes
formats/    bytes -> records (JSON lines, Parquet, MediaWiki, ...)
git/        git repositories -> the objects and paths of a commit
code/       files of repositories -> documents with language and licence; generated and copied files are marked
web/        WARC and HTML -> pages -> text, extracted in a child process
rich/       books, papers, mail and other documents -> text, most of it extracted in the same child process
documents   records -> normalised documents, or quarantined with a reason
part_writer documents -> tables of bounded size
"""
