"""The page with the tokens that a model predicts at each position of a text, rendered from the template
next_tokens.html.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath

from gristmill.page.render import render_template
from trainers.evaluation.scoring.token_choices import TokenChoice


def render_next_tokens(model: str, form: str, choices: Sequence[TokenChoice]) -> str:
    """Return a page of a text's tokens and the model's predictions as self-contained HTML. `form` describes
    how the text was scored. `choices` must not be empty.
    """
    count = len(choices)
    return render_template(
        Path(__file__).with_name("next_tokens.html"),
        title=f"{PurePath(model).name}: next tokens",
        kind="next tokens",
        model=model,
        form=form,
        choices=choices,
        most=max(choice.surprisal for choice in choices),
        mean=sum(choice.surprisal for choice in choices) / count,
        first=sum(choice.rank == 1 for choice in choices) / count,
        visible=lambda text: text.replace(" ", "␣"),
    )
