"""Builders of minimal PDFs, EPUBs and Word documents."""

import html
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:mc="http://example.org/mc"'


def pdf_objects(objects: Sequence[bytes], trailer: bytes = b"/Root 1 0 R") -> bytes:
    """Return a PDF of these objects, numbered from 1, with its cross-reference table."""
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out + b"trailer\n<< /Size %d %s >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, trailer, start))


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), entries, content)


def content(lines: Sequence[str]) -> bytes:
    escaped = [re.sub(rb"([\\()])", rb"\\\1", line.encode("cp1252")) for line in lines]
    drawn = [b"1 0 0 1 50 %d Tm (%s) Tj" % (800 - 14 * number, line) for number, line in enumerate(escaped)]
    return b"BT /F1 12 Tf\n" + b"\n".join(drawn) + b"\nET"


def pdf(
    pages: Sequence[Sequence[str]], information: bytes = b"", kids: bytes | None = None, trailer: bytes = b""
) -> bytes:
    own = b" ".join(b"%d 0 R" % (5 + 2 * number) for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (own if kids is None else kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>", b"<< %s >>" % information,
    ]  # fmt: skip
    for number, lines in enumerate(pages):
        page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>"
        objects += [page % (6 + 2 * number), stream(content(lines))]
    return pdf_objects(objects, b"/Root 1 0 R /Info 4 0 R " + trailer)


def zipped(members: Mapping[str, str | bytes], stored: Sequence[str] = ()) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data, zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED)
    return sink.getvalue()


CONTAINER = """<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""


def epub(
    chapters: Mapping[str, str],
    metadata: str = "",
    more: Mapping[str, str | bytes] = MappingProxyType({}),
    spine: Sequence[str] = (),
) -> bytes:
    entries = "".join(
        f'<item id="c{n}" href="{html.escape(name)}" media-type="application/xhtml+xml"/>'
        for n, name in enumerate(chapters)
    )
    order = "".join(f'<itemref idref="{each}"/>' for each in spine or [f"c{n}" for n in range(len(chapters))])
    package = f"""<?xml version="1.0" encoding="utf-8"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{metadata}</metadata><manifest>{entries}</manifest>
<spine>{order}</spine></package>"""
    pages = {
        f"OEBPS/{name}": '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
        '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head>'
        f"<body>{body}</body></html>"
        for name, body in chapters.items()
    }  # fmt: skip
    members = {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER, "OEBPS/content.opf": package}
    return zipped({**members, **pages, **more}, stored=["mimetype"])


def docx(body: str, more: Mapping[str, str | bytes] = MappingProxyType({}), head: str = "") -> bytes:
    members = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
        "word/document.xml": f'<?xml version="1.0" encoding="UTF-8"?>{head}<w:document {W}><w:body>{body}</w:body></w:document>',
    }
    return zipped({**members, **more})


def paragraph(text: str, properties: str = "") -> str:
    return f'<w:p><w:pPr>{properties}</w:pPr><w:r><w:t xml:space="preserve">{html.escape(text)}</w:t></w:r></w:p>'
