"""The reasons for quarantining a record, the exception for input that cannot be read to its end
(`BrokenInput`), and the number of bytes that are read at a time.
"""

CHUNK_BYTES = 1 << 18  # bytes requested at a time from a file, a decompressor or an archive member

REASONS = {
    "bad_coding": "a transfer or content coding of an HTTP response cannot be undone",
    "bad_header": "the header block of a message has a line that is neither `Name: value` nor a continuation",
    "bad_http": "the record is declared an HTTP response but does not begin with a status line and headers",
    "bad_message": "the message has no header, or its parts nest too deep",
    "bad_post": "a post of a Stack Exchange dump whose id, parent or score is not a number, or whose id another post has",
    "bad_quotes": "a CSV row has anything but the delimiter after a closing quote, or a lone carriage return outside quotes",
    "binary": "a file of a repository that is not text: one of its first 8,000 bytes is zero",
    "corrupt": "the bytes are not what the compression, archive or format allows; what came before is kept",
    "decoded_limit": "the file decodes to more than max_decoded_bytes or 1,000 times its size; what came before is kept",
    "dns": "a DNS lookup",
    "empty": "after normalisation the record has no characters, or only invisible ones",
    "encrypted": "the archive member, Parquet file, PDF, book or document is encrypted",
    "field_count": "a CSV row has more or fewer fields than the first row",
    "html_bytes": "the page, as transferred or decoded, or a part of the document is longer than max_html_bytes",
    "html_depth": "the elements of the page nest more than max_html_depth levels deep",
    "html_nodes": "the page has more than max_html_nodes elements",
    "http_status": "an HTTP response with a status other than 200",
    "large_batch": "a record batch of an Arrow file takes more than 512 MiB of memory; what came before is kept",
    "large_page": "a page of a Parquet file takes more than 256 MiB of memory; what came before is kept",
    "lfs_pointer": "a file in Git LFS, of which the git repository holds only a pointer",
    "licence": "a licence file, which says how the files in its directory and below may be used",
    "lone_surrogate": "the text or the URL holds half of a surrogate pair, which no Unicode encoding can represent",
    "malformed_record": "bytes of a web archive that form no record (no header, or a wrong length), up to the next record",
    "metadata": "a metadata record of a web archive, as are all records of a WAT file",
    "missing_object": "a file or directory that the git repository does not hold, such as a partial clone",
    "nested_archive": "an archive inside an archive, or more than two layers of compression; it is not opened",
    "no_question": "an answer whose question is not in the Stack Exchange dump",
    "no_text": "the record has no text field, or it is null",
    "no_text_extracted": "the page or document holds no text, or none that the extractor considers content",
    "no_text_layer": "the pages of the PDF are pictures without a text layer, such as those of a scanner",
    "not_arrow": "not an Arrow IPC file or stream",
    "not_article": "the page of a MediaWiki dump is outside the namespace of articles",
    "not_docx": "not a Word document (.docx)",
    "not_epub": "not an EPUB",
    "not_gutenberg": "the file has no line that begins a book of Project Gutenberg (`*** START OF THE PROJECT GUTENBERG EBOOK`)",
    "not_html": "a payload of a web archive that is neither HTML nor a conversion to plain text",
    "not_json": "the line, element or document is not JSON",
    "not_latex": "not a document in LaTeX or TeX, or an archive without one",
    "not_mbox": "not an mbox: it does not begin with a line `From SENDER TIME`",
    "not_mediawiki": "not the XML of a MediaWiki dump",
    "not_object": "the line or element is JSON, but not an object",
    "not_parquet": "not a Parquet file, or one inside an archive or a compressed file, where it cannot be read",
    "not_pdf": "not a PDF",
    "not_question": "a post of a Stack Exchange dump that is neither a question nor an answer, such as the wiki of a tag",
    "not_regular": "the member of an archive or a git repository is a link, a device or a pipe",
    "not_sampled": "the source is read in part (`sample`), and the record is not in the sample",
    "not_stack_exchange": "not the XML of Posts.xml in a Stack Exchange data dump",
    "not_subtitles": "the file has no line with the times of a cue (`00:00:01,000 --> 00:00:02,000`)",
    "not_wikitext": "the page of a MediaWiki dump is not wikitext",
    "oversized": "the record is longer than max_document_bytes",
    "file_bytes": "the file is longer than max_file_bytes",
    "forgotten": "the user had the document removed from the corpus",
    "poison": "the user set the record aside because it crashes its parser",
    "record_limit": "the file holds more than a million records and more than 4 per byte; the records before are kept",
    "redirect": "the page of a MediaWiki dump is a redirect",
    "request": "a request that the crawler sent",
    "revisit": "a page unchanged since the crawler's earlier visit; the record holds no copy of it",
    "segmented": "one segment of a record that was divided into several",
    "submodule": "a submodule of a git repository, which is a repository of its own",
    "text_not_string": "the text field is not a string",
    "too_many_files": "the archive of a LaTeX paper holds more than 20,000 files, or they include more than 10,000; or the "
    "commit of a git repository holds more than 1,000,000, of which the first are kept",
    "too_many_values": "the JSON record holds more than 1,048,576 values and names",
    "trailing_bytes": "bytes follow the end of the archive or JSON document; they are not read",
    "truncated": "the file ends within compressed data, an archive, a member or a document; what came before is kept",
    "unclosed_quote": "a quoted field of a CSV row does not end within max_document_bytes",
    "undecodable": "the bytes are invalid in the declared encoding; for a page, in more than a tenth of its text",
    "unknown_record_type": "the WARC standard does not know the type of the record",
    "unsupported_compression": "the archive member uses a compression that Python cannot read",
    "warcinfo": "a record about the web archive itself",
    "wrong_type": "a field does not have the type that `columns` of the source gives it",
    "wrong_suffix": "the file name has the suffix of a compression that the bytes do not have",
    "xml_doctype": "the XML declares a document type or entities, which are not expanded; what came before is kept",
}
"""Every reason for quarantining a record, and its explanation for users."""

STRUCTURAL = frozenset(
    {
        "binary", "dns", "forgotten", "http_status", "lfs_pointer", "licence", "metadata", "not_article", "not_html",
        "not_question", "not_regular", "not_sampled", "not_wikitext", "poison", "redirect", "request", "revisit", "segmented",
        "submodule",
        "unknown_record_type", "warcinfo",
    }
)  # fmt: skip
"""Reasons that are expected: the record is not a document, or the user left it out. Any number of such
records is fine; many records with another reason suggest that the source is read with the wrong settings.
"""


class BrokenInput(Exception):
    """Raised when a file, member or document is damaged, in the wrong format or over a limit. `reason` says
    why, usually as a key of REASONS.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
