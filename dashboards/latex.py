"""Text for LaTeX: special characters, and the signs that a plain pdflatex does not know."""

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "²": r"\textsuperscript{2}", "−": r"$-$", "–": "--", "×": r"$\times$", "±": r"$\pm$",
    "<": r"$<$", ">": r"$>$", "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\to$", "…": r"\dots{}",
}  # fmt: skip


def escape_latex(text: object) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_SPECIAL.get(letter, letter) for letter in str(text))
