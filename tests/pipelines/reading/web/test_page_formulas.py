"""Formulas on pages become LaTeX: from the annotation if there is one, otherwise converted from MathML."""

import pytest
from resiliparse.parse.html import HTMLTree

from pipelines.reading.web.page_formulas import latex_of
from pipelines.reading.web.page_markdown import extract_markdown


def text(body: str) -> str:
    return extract_markdown(HTMLTree.parse(f"<html><body>{body}</body></html>"), main_content=False)


WIKIPEDIA = (
    '<span class="mwe-math-element"><span style="display: none;"><math alttext="{\\displaystyle a^{2}}"><semantics>'
    '<msup><mi>a</mi><mn>2</mn></msup><annotation encoding="application/x-tex">{\\displaystyle a^{2}}</annotation>'
    '</semantics></math></span><img class="mwe-math-fallback-image-inline" alt="{\\displaystyle a^{2}}"></span>'
)
KATEX = (
    '<span class="katex-display"><span class="katex"><span class="katex-mathml"><math><semantics><mi>b</mi>'
    '<annotation encoding="application/x-tex">b_1</annotation></semantics></math></span>'
    '<span class="katex-html" aria-hidden="true">b1</span></span></span>'
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"<p>Let {WIKIPEDIA} be</p>", "Let $a^{2}$ be"),
        (f"<p>x {KATEX} y</p>", "x $$b_1$$ y"),
        ('<p>x <span class="MathJax_Preview">c</span><script type="math/tex; mode=display">c &lt; d</script> y</p>',
         "x $$c &lt; d$$ y"),
        ('<p>x <script type="math/tex">\\frac12</script></p>', "x $\\frac12$"),
        ('<p>x <img class="latex" alt="\\sum_i x_i"> y</p>', "x $\\sum_i x_i$ y"),
        ('<p><math display="block" alttext="q"><mi>q</mi></math></p>', "$$q$$"),
        ('<p><math alttext=" "><mi>q</mi></math></p>', "$q$"),
        ("<p>a<math></math>b</p>", "ab"),
        ('<p><math><semantics><mi>q</mi><annotation encoding="application/x-tex"> </annotation></semantics></math></p>', "$q$"),
        ("<p>costs $5 and $6</p>", "costs $5 and $6"),
    ],
)  # fmt: skip
def test_formulas_are_between_dollar_signs(body: str, expected: str) -> None:
    assert text(body) == expected


@pytest.mark.parametrize(
    ("mathml", "expected"),
    [
        ("<mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><msqrt><mi>π</mi></msqrt></mfrac>", r"\frac{a + 1}{\sqrt{\pi}}"),
        ("<msup><mrow><mi>a</mi><mi>b</mi></mrow><mn>2</mn></msup>", "{ab}^{2}"),
        ("<msubsup><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></msubsup><mi>x</mi>", r"\sum_{i = 1}^{n}x"),
        ("<mroot><mi>x</mi><mn>3</mn></mroot>", r"\sqrt[3]{x}"),
        ("<mi>sin</mi><mo>&#x2061;</mo><mo>(</mo><mi>θ</mi><mo>)</mo>", r"\operatorname{sin}  (\theta )"),
        ("<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr><mtr><mtd><mn>0</mn></mtd><mtd><mn>1</mn></mtd></mtr></mtable>",
         r"\begin{matrix} 1 & 0 \\ 0 & 1 \end{matrix}"),
        ("<mi>x</mi><mtext> if  y </mtext><mo>%</mo>", r"x\text{if y} \% "),
        ("<munknown><mi>x</mi><mi>y</mi></munknown>", "xy"),
        ("<msup><mi>x</mi></msup>", "x"),
    ],
)  # fmt: skip
def test_mathml_without_an_annotation_is_converted(mathml: str, expected: str) -> None:
    math = HTMLTree.parse(f"<math>{mathml}</math>").document.query_selector("math")
    assert latex_of(math) == expected


def test_deep_mathml_becomes_its_text() -> None:
    deep = "<msqrt>" * 3000 + "<mi>x</mi>" + "</msqrt>" * 3000
    math = HTMLTree.parse(f"<math>{deep}</math>").document.query_selector("math")
    latex = latex_of(math)
    assert "x" in latex
    assert latex.count("sqrt") <= 100
