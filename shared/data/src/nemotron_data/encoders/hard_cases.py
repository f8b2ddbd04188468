r"""Texts on which tokenizer libraries are known to differ.

"x\u200dy", "\r\n \t", "</s></s>", "</", "s> 7777777777"
"""

from tokenizers import Tokenizer

TOKENS_TRIED = 24

FIXED = (
    "",
    " ",
    "\n",
    "\t\t\tx\t ",
    "trailing  \n  leading\r\n\r\n\rmixed\n\r",
    " " * 50,
    "a" + " " * 33 + "b  c   d",
    "\n\n\n \n  \n\t\n",
    "\u00a0\u2003\u3000 \u2028\u2029\u0085\v\f",
    "日本語のテキスト。中文,한국어 ไทย हिन्दी",
    "e\u0301e\u0302\u0323 n\u0303 \u0301alone Å\u212bﬁ İı ẞß",
    "العربية \u200fעברית\u200e \u202eabc\u202c",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷🇩 👍🏽 ☎️ \U0010ffff \U0001f9ff",
    "x\u200dy\u200cz\u00adw\u2060\ufeff",
    "\ufeffstarts with a byte order mark",
    "NUL\x00inside\x00\x00",
    "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f",
    "0123456789" * 40,
    "3.14159 1,000,000 ٣٤٥ ²³¹ Ⅻ ½ 0x7fFF 1e-9",
    "don't I'LL we've it's 'S 'sa 'tis O'Neil’s",
    "CamelCaseHTTPServer snake_case kebab-case ALLCAPS mIxEd ǅǆǄ ʰ",
    "def f(x):\n    return {k: v[0] for k, v in x.items()}  # noqa\n\n\n\tif (a&&b||!c) { i+=1; }\n",
    "https://example.org/a//b?c=d&e=%20#f <div class='x'>&amp;</div> //---***===",
    "word" * 700,
    "é" * 300 + "字" * 300 + "😀" * 100,
    "!?" * 200 + "...…—–-“”«»",
    "\U00020000\U0001d54f\ufffd\ufffe\uffff",
)


def hard_cases(tokenizer: Tokenizer) -> list[str]:
    """Fixed texts, and the tokenizer's own special tokens in every awkward position."""
    names = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    tried = names[: TOKENS_TRIED - 1] + names[TOKENS_TRIED - 1 :][-1:]
    cases = [*FIXED, "".join(tried), " ".join(tried), "\n".join(reversed(tried))]
    for name in tried:
        half = len(name) // 2
        start, end = name[:half], name[half:]
        cases += [
            name,
            f"word{name}word  {name}  {name}\n{name}\n\n 12{name}34",
            name * 3 + " ",
            f" {name} ",
            start,
            end,
            f"{start} {end} {start}{name}{end} {start}{start}{end}{end}",
            name.upper() + name.lower() + name[:-1] + "\u0301",
        ]
    return cases
