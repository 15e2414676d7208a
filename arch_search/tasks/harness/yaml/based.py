"""What the three tasks here share: prompts that end in an open question, scored by containment.

From the tasks of "Just read twice" (arXiv 2407.05483) as arXiv 2603.14360 used them: the context
without the question at its end, then the question; the answer counts if any gold string stands in
the first generated line, whatever its case.
"""

import re
from typing import Any

_MARKS = re.compile(r"\[(?:PAR|DOC|TLE)\]")


def prompt(doc: dict[str, Any]) -> str:
    """The context, then the question that it may have ended with."""
    context, question = doc["context"].strip(), doc["question"].strip()
    while question and context.lower().endswith(question.lower()):
        context = context[: -len(question)].rstrip()
    return f"{context.strip('.')}. {question}"


def prompt_without_marks(doc: dict[str, Any]) -> str:
    """The same without the marks of paragraphs, documents and titles."""
    return prompt({**doc, "context": _MARKS.sub("", doc["context"])})


def contains(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if any gold answer occurs in what was generated, else 0."""
    said = results[0].lower()
    return {"contains": float(any(answer.lower() in said for answer in doc["answers"]))}
