"""The script that draws, prepared for a page of few kinds of figures."""

import re
from collections.abc import Iterable

from plotly.offline import get_plotlyjs

__all__ = ["plotly_script"]

# One call registers every kind of trace, and runs the code of each: maps of the world, 3-D, and so on.
_REGISTER = re.compile(r"\.register\(\[((?:[\w$]+\(\),)+[\w$]+\(\))\]\);")
# Modules run when they are first asked for. One that only hands on another: `a=W((e,t)=>{"use strict";t.exports=b()})`.
_HANDS_ON = re.compile(r'[\s,;]([\w$]+)=[\w$]+\(\([\w$]+,[\w$]+\)=>\{"use strict";[\w$]+\.exports=([\w$]+)\(\)\}\)')
_MODULE = re.compile(r"[\s,;]([\w$]+)=[\w$]+\(\([\w$]+,[\w$]+\)=>\{")
_KIND = re.compile(r'moduleType:"trace",name:"(\w+)"')
# A kind's name stands in its module, whose head is at most so many characters before it.
_REACH = 4000


def plotly_script(*kinds: str) -> str:
    """plotly's script, which registers these kinds of traces beside scatter, and leaves the others' code unread.

    Running the code of all kinds is most of the time that a browser needs for the script. Where the script is not
    built as expected it is returned as it is: slower, and no less right.

    Args:
        *kinds: names of traces, such as "heatmap"; all, if none is given.
    """
    return kept_kinds(get_plotlyjs(), kinds) if kinds else get_plotlyjs()


def kept_kinds(script: str, kinds: Iterable[str]) -> str:
    """The script with the call that registers all kinds of traces cut down to these; unchanged if one is not found.

    Example:
        >>> script = 'var a=W((e,t)=>{t.exports={moduleType:"trace",name:"pie"}});'
        >>> script += 'var b=W((e,t)=>{"use strict";t.exports=a()}),c=W((e,t)=>{});P.register([b(),c()]);'
        >>> kept_kinds(script, ["pie"]).endswith("P.register([b()]);")
        True
        >>> kept_kinds(script, ["heatmap"]) == script
        True
    """
    calls = list(_REGISTER.finditer(script))
    if len(calls) != 1:
        return script
    handed = {module: name for name, module in _HANDS_ON.findall(script)}
    registered = [call.removesuffix("()") for call in calls[0][1].split(",")]
    kept: list[str] = []
    for kind in kinds:
        modules = [
            module for found in _KIND.finditer(script) if found[1] == kind for module in _around(script, found.start())
        ]
        names = [name for module in modules for name in (module, handed.get(module, "")) if name in registered]
        if len(names) != 1:
            return script
        kept.append(names[0])
    start, end = calls[0].span(1)
    return script[:start] + ",".join(f"{name}()" for name in kept) + script[end:]


def _around(script: str, at: int) -> list[str]:
    """The name of the module whose head is the last one before a place."""
    heads = list(_MODULE.finditer(script, max(0, at - _REACH), at))
    return [heads[-1][1]] if heads else []
