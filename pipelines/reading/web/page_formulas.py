"""Write the formulas of a page as LaTeX between dollar signs: the page's own LaTeX where it has any, else
LaTeX converted from MathML.

Pages carry the LaTeX of a formula as an `annotation` in MathML (Wikipedia, KaTeX, LaTeXML), as `alttext` of
`math`, in `script` elements of the type `math/tex` (MathJax 2), or as the `alt` of an image (WordPress, old
MediaWiki).
"""

import re
from typing import Any

RENDERED = (".katex-html", "mjx-math", ".MathJax_Preview")
"""CSS selectors for what renderers display for a formula that the page also has as MathML or LaTeX."""
_WRAPPERS = ".mwe-math-element, .katex, mjx-container"  # they hold a formula, and hide its MathML
_ANNOTATIONS = ", ".join(
    f'annotation[encoding="{kind}" i]' for kind in ("application/x-tex", "application/x-latex", "tex", "latex")
)
_IMAGES = 'img.latex[alt], img.tex[alt], img[class*="mwe-math-fallback"][alt]'
_DISPLAYSTYLE = re.compile(r"\{\\(?:displaystyle|textstyle)\s+(.*)\}", re.DOTALL)
_DEPTH = 100  # of MathML that is converted; deeper formulas become their text
_SCRIPTS = {"msub": "_", "munder": "_", "msup": "^", "mover": "^"}
_LETTERS = {
    **dict(zip("αβγδεζηθικλμνξπρστυφχψω", ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota",
        "kappa", "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"),
        strict=True)),
    "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi",
    "Ω": "Omega", "∑": "sum", "∏": "prod", "∫": "int", "∞": "infty", "≤": "le", "≥": "ge", "≠": "ne", "≈": "approx",
    "×": "times", "·": "cdot", "⋅": "cdot", "±": "pm", "→": "to", "∈": "in", "∉": "notin", "∀": "forall", "∃": "exists",
    "∂": "partial", "∇": "nabla", "√": "surd", "∪": "cup", "∩": "cap", "⊂": "subset", "⊆": "subseteq", "…": "ldots",
    "⋯": "cdots", "∼": "sim", "≡": "equiv", "⇒": "Rightarrow", "⇔": "Leftrightarrow", "∅": "emptyset", "ℝ": "mathbb{R}",
    "ℕ": "mathbb{N}", "ℤ": "mathbb{Z}", "ℂ": "mathbb{C}", "ℚ": "mathbb{Q}", "′": "prime", "−": "-",
}  # fmt: skip
_INVISIBLE = re.compile("[\u2061-\u2064]")  # function application, invisible times, separator and plus


def write_formulas(tree: Any) -> None:
    """Replace each formula in `tree`, resiliparse's HTMLTree of a page, with its LaTeX: `$...$`, or `$$...$$`
    for a display formula.
    """
    for script in tree.document.query_selector_all('script[type^="math/tex"]')[:]:
        display = "mode=display" in script.getattr("type").replace(" ", "")
        _replace(tree, script, script.text, display)
    # An element with another of its kind inside is left alone, so that nothing is searched twice however deep a page nests.
    for wrapper in tree.document.query_selector_all(_WRAPPERS)[:]:
        if wrapper.query_selector(_WRAPPERS) is None and (math := wrapper.query_selector("math")) is not None:
            parent = wrapper.parent
            display = parent is not None and "katex-display" in (parent.getattr("class") or "")
            _replace(tree, wrapper, latex_of(math), display or math.getattr("display") == "block")
    for math in tree.document.get_elements_by_tag_name("math")[:]:
        if math.query_selector("math") is None:
            _replace(tree, math, latex_of(math), math.getattr("display") == "block")
    for image in tree.document.query_selector_all(_IMAGES)[:]:
        _replace(tree, image, image.getattr("alt"), False)


def latex_of(math: Any) -> str:
    """Return the LaTeX of a `math` element: its annotation, else its `alttext`, else LaTeX converted from its
    MathML.
    """
    annotation = math.query_selector(_ANNOTATIONS)
    if annotation is not None and annotation.text.strip():
        return str(annotation.text)
    return str(math.getattr("alttext") or "").strip() or _convert(math, _DEPTH)


def _replace(tree: Any, element: Any, latex: str, display: bool) -> None:
    latex = " ".join(latex.split())
    inner = _DISPLAYSTYLE.fullmatch(latex)
    latex = latex if inner is None else inner[1].strip()
    mark = "$$" if display else "$"
    element.replace_with(tree.create_text_node(f"{mark}{latex}{mark}" if latex else ""))


def _convert(element: Any, depth: int) -> str:
    """Convert presentation MathML to LaTeX. Elements nested `depth` levels deep are reduced to their text."""
    tag = element.tag
    if tag in ("mi", "mn", "mo"):
        return _symbols(element.text, tag)
    if tag in ("mtext", "ms") or not depth:
        text = " ".join(element.text.split())
        return rf"\text{{{text}}}" if text else " "
    if tag in ("annotation", "annotation-xml"):
        return ""
    parts = [_convert(child, depth - 1) for child in element.child_nodes if getattr(child, "tag", "#text")[:1] != "#"]
    if tag in _SCRIPTS and len(parts) == 2:
        return f"{_base(parts[0])}{_SCRIPTS[tag]}{{{parts[1].strip()}}}"
    if tag in ("msubsup", "munderover") and len(parts) == 3:
        return f"{_base(parts[0])}_{{{parts[1].strip()}}}^{{{parts[2].strip()}}}"
    if tag == "mfrac" and len(parts) == 2:
        return rf"\frac{{{parts[0].strip()}}}{{{parts[1].strip()}}}"
    if tag == "mroot" and len(parts) == 2:
        return rf"\sqrt[{parts[1].strip()}]{{{parts[0].strip()}}}"
    if tag == "msqrt":
        return rf"\sqrt{{{''.join(parts).strip()}}}"
    if tag in ("mtable", "mtr", "mlabeledtr"):
        joint = r" \\ " if tag == "mtable" else " & "
        row = joint.join(part.strip() for part in parts)
        return rf"\begin{{matrix}} {row} \end{{matrix}}" if tag == "mtable" else row
    return "".join(parts)


def _base(latex: str) -> str:
    return (
        latex.strip()
        if len(latex.strip()) == 1 or re.fullmatch(r"\\[a-zA-Z]+", latex.strip())
        else f"{{{latex.strip()}}}"
    )


def _symbols(text: str, tag: str) -> str:
    text = "".join(_INVISIBLE.sub("", text).split())
    if tag == "mi" and len(text) > 1 and text.isascii() and text.isalpha():
        return rf"\operatorname{{{text}}}"
    latex = "".join(_symbol(character) for character in text)
    return f" {latex.strip()} " if tag == "mo" and text not in tuple("()[]|,.!") else latex


def _symbol(character: str) -> str:
    name = _LETTERS.get(character)
    if name is None:
        return f"\\{character}" if character in "{}%#&$" else character
    return name if name == "-" else f"\\{name} "
