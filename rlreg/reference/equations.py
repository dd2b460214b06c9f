"""From TeX to MathML, which browsers set by themselves: no script, no font, nothing loaded."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from markupsafe import Markup


@lru_cache(maxsize=1024)
def mathml(tex: str, display: Literal["inline", "block"] = "inline") -> Markup:
    """Renders an equation; one that cannot be parsed is shown as it was written."""
    # Imported late: its table of symbols takes longer to read than most commands run.
    from latex2mathml.converter import convert

    try:
        text = convert(" ".join(tex.split()), display=display)
    except Exception:  # noqa: BLE001 - the library raises what it likes; an author wrote the text
        if display == "block":
            return Markup('<pre tabindex="0"><code>{}</code></pre>').format(tex)
        return Markup("<code>{}</code>").format(tex)
    # Readers that do not know MathML take this instead.
    return Markup('<math alttext="{}"').format(" ".join(tex.split())) + Markup(
        text.removeprefix("<math")
    )
